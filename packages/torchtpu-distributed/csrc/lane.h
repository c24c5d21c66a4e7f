// SPDX-License-Identifier: Apache-2.0
// The order in which collectives of one group begin: by their numbers, each once it is compared
// with what other ranks are known to call.
//
// One that its caller does not wait for begins when it is called, unless another rank lags so far
// behind that it must not be told yet. Then whoever waits for it, or for a later one, begins it;
// or, if nobody does for a while, a thread behind.
#pragma once

#include "mailbox.h"
#include "operation.h"

#include <condition_variable>
#include <deque>

namespace torchtpu::distributed {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

// Writes what this rank calls and looks at what the others do; without the GIL.
enum class Agreement { kSame, kDiffers, kEnded, kNotYet };
// `others`: what a rank that differs calls, after its number in the group and a line's end. It
// tries once, or until aborted if it is `patient`.
Agreement compare(Mailbox& box, uint64_t number, const Call& call, const std::string& line, const Abort& abort,
                  bool patient, bool handles_signals, std::string& others);

class Lane : public std::enable_shared_from_this<Lane> {
 public:
  enum class Patience { kNone, kAwake, kBehind };  // kAwake: Python's handlers of signals run

  Lane(int rank, std::shared_ptr<Abort> abort) : rank_(rank), abort_(std::move(abort)) {}
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  ~Lane();

  // The connections are made. No mailbox: the group has one rank.
  void connect(BackendPtr gloo, std::shared_ptr<Mailbox> mailbox);
  bool is_connected() const { return connected_.load(std::memory_order_acquire); }
  c10d::Backend& gloo() const { return *gloo_; }

  // All of these: the GIL is not held.
  // Compares with what other ranks call, and says in `other` what one that differs does; nothing if
  // it calls the same, with pieces of other sizes.
  Agreement agree(const Pending& record, Patience patience, std::string& other);
  // Takes the next operation, and sees to it that it begins.
  void enter(const OperationPtr& operation);
  // Begins those that wait, in order, up to `last`, or all; at once what is possible without
  // waiting if there is no patience. Throws what a handler of a signal does.
  void serve(Patience patience, const Operation* last = nullptr);
  // Somebody needs them, and does not wait here.
  void hurry();

  bool is_empty() const { return length_.load() == 0; }
  // Another rank calls something else: nothing begins any more, since gloo would give what comes
  // next to that call.
  bool is_broken() const { return broken_.load(); }
  // How many a thread behind has begun, and how long it waits for somebody else to do it.
  std::atomic<size_t> begun_behind{0};
  std::atomic<double> grace_s{0.0002};

 private:
  Agreement begin(Operation& first, Patience patience);
  void leave(Agreement agreement);
  void serve_behind();
  void call_behind();

  const int rank_;
  const std::shared_ptr<Abort> abort_;
  BackendPtr gloo_;
  std::shared_ptr<Mailbox> mailbox_;
  std::atomic<bool> connected_{false};
  std::atomic<bool> broken_{false};
  std::mutex mutex_;  // nobody waits for the GIL in it
  std::condition_variable changed_;
  std::deque<OperationPtr> waiting_;
  std::atomic<size_t> length_{0};  // of those
  bool serving_ = false;  // a thread is about to begin the first
  bool called_ = false;   // a thread behind has been asked to come
  bool hurried_ = false;  // it need not be patient
};

}  // namespace torchtpu::distributed
