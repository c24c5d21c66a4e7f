// SPDX-License-Identifier: Apache-2.0
// The short way of a collective of one group behind a simulated target: everything from its call
// to its end without Python, in the thread that calls it, or in gloo's if the caller goes on
// (operation.h).
//
// It serves tensors whose memory gloo may use as it is, when no asynchronous one of Python's is
// under way and the group's connections are made. For everything else it declines, before it has changed
// anything, and Python's HostRunner goes the long way: both number, record and compare their
// collectives in the same places, so ranks may go different ways. What to do about a failure is
// HostRunner's to say.
#pragma once

#include "lane.h"
#include "letters.h"
#include "own_messages.h"

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <unordered_map>

namespace torchtpu::distributed {

// A number that compiled code can look at without the GIL.
struct Count {
  std::atomic<size_t> value{0};
};

// The time that a caller gave to wait() is over.
struct NotYet : c10::DistBackendError {
  using c10::DistBackendError::DistBackendError;
};
[[noreturn]] void throw_not_yet(const Pending& record, std::chrono::milliseconds timeout);

// What one rank asks of a collective.
struct Request {
  const char* kind = "";         // these three as Python's calls.Collective has them
  const char* op = "";
  int root = -1;
  at::TensorList operands = {};  // both empty: a barrier
  at::TensorList results = {};
  bool reads = true;             // whether this rank's operands are sent as they are,
  bool writes = true;            // and whether it gets results
  bool in_place = false;         // the operand is part of the result, and not changed by it
  bool stacked = false;          // a future holds the results as one tensor
  bool later = false;            // the caller does something else meanwhile
  std::chrono::milliseconds timeout{c10d::kUnsetTimeout};  // that it may take; unset: the group's
  std::string pieces = {};       // see pieces.h
};

class Direct : public std::enable_shared_from_this<Direct> {
 public:
  // `owner` is asked what compiled code does not know, and told of failures; weakly held.
  // `in_flight`: Python's asynchronous ones. `in_place`: the device's memory is host memory, so
  // gloo can use it.
  Direct(std::shared_ptr<GroupState> group, std::shared_ptr<Records> records, std::shared_ptr<Abort> abort,
         std::shared_ptr<Count> in_flight, std::shared_ptr<Operations> operations, py::object owner, int rank,
         bool in_place);
  Direct(const Direct&) = delete;
  Direct& operator=(const Direct&) = delete;
  ~Direct();

  // The connections are made: it can be used. No mailbox: the group has one rank.
  void connect(BackendPtr gloo, std::shared_ptr<Mailbox> mailbox);

  // Begins the collective on memory: flat CPU tensors, none where nothing is read or
  // written. Returns works to wait for; `end` is what to do then. Neither keeps this object.
  using End = Operation::End;
  using Begin = std::function<std::vector<WorkPtr>(c10d::Backend& gloo, const Tensors& sources,
                                                   const Tensors& targets, End& end)>;

  // A finished work, or one to wait for if it was called for `later`; null if it declines.
  // Throws what HostRunner says about a failure.
  WorkPtr run(const Request& request, Begin begin);
  // Waits, without the GIL, for one that was called for later. A timeout is the caller's own: after
  // it this throws NotYet, and the operation goes on.
  void wait(Operation& operation, std::chrono::milliseconds timeout);
  // Begins all that were called for later, without the GIL.
  void settle() { lane_->serve(Lane::Patience::kAwake); }
  // Waits until they are over, without the GIL; false if aborted.
  bool drain() const {
    return poll(*abort_, [this] { return operations_->idle_in(*group_); });
  }
  const std::shared_ptr<Lane>& lane() const { return lane_; }
  OwnMessages& own_messages() { return *own_messages_; }

  // Ends of messages are compared from now on.
  void share(std::shared_ptr<Mailbox> mailbox) { letters_.emplace(std::move(mailbox), rank_); }
  // Compares one end with what the other has said; throws what HostRunner says about a difference,
  // and has it warn of one of shape only, since gloo delivers such a message.
  // `peer` negative: any rank, one of which `source` is when the message has come. The GIL is held.
  void compare(const PendingPtr& record, bool sends, int peer, int tag, const at::Tensor& tensor, int source = -1);

  // The record of a message, kept in the ring; the GIL is held. `kind`: send or recv.
  PendingPtr message(const char* kind, int peer, const at::Tensor& tensor);
  // Waits, without the GIL, for something the record stands for; it is under way meanwhile.
  // `wait` gives false when it is aborted. Throws what HostRunner says about a failure; a
  // ValueError is the caller's own mistake, and NotYet the end of its patience: no failures of the group.
  void follow(const PendingPtr& record, const std::function<bool(const Abort&)>& wait);

  // The tensor's memory if gloo may use it now, see Native::memory; the GIL is held.
  Memory memory(const at::Tensor& tensor, bool write) const;

  // No asynchronous collective of Python's is under way, and the job has not failed.
  bool is_quiet() const;
  bool is_aborted() const { return abort_->set.load(); }
  py::object owner() const { return owner_(); }
  int size() const { return static_cast<int>(group_->ranks.size()); }
  int rank() const { return rank_; }
  const GroupState& group() const { return *group_; }
  // Raises the failure of the job, if there is one.
  void check() const;

 private:
  enum class Outcome { kDone, kDiffers, kEnded };

  // What one call works on.
  struct Prepared {
    PendingPtr record;
    std::vector<Memory> sources;
    std::vector<Memory> targets;
    std::vector<WrittenPtr> written;
  };

  bool ready_for(const Request& request) const;
  bool prepare(const Request& request, Prepared& prepared);
  WorkPtr run_now(const Request& request, const Begin& begin, Prepared prepared);
  WorkPtr run_later(const Request& request, Begin begin, Prepared prepared);
  bool find_memory(const Request& request, Prepared& prepared) const;
  Memory memory_to_write(const at::Tensor& tensor, std::vector<WrittenPtr>& written) const;
  void wait_for_users_of(const at::Tensor& tensor) const;
  py::object explain(const char* how, const PendingPtr& record, const std::string& said);
  std::shared_ptr<const Call> known(const Request& request);
  std::string line() const;
  Outcome perform(Pending& record, const Operation::Start& start);
  [[noreturn]] void report(const char* how, const PendingPtr& record, const std::string& text);

  const int rank_;
  const bool in_place_;
  std::shared_ptr<GroupState> group_;
  std::shared_ptr<Records> records_;
  std::shared_ptr<Abort> abort_;
  std::shared_ptr<Count> in_flight_;
  std::shared_ptr<Operations> operations_;
  std::shared_ptr<Lane> lane_;
  std::shared_ptr<OwnMessages> own_messages_ = std::make_shared<OwnMessages>();
  py::object owner_;  // a weak reference
  std::optional<Letters> letters_;
  std::string other_;  // what another rank calls instead
  // Guarded by the GIL. Of a message, with the two ranks as a group.
  std::unordered_map<std::string, std::shared_ptr<const Call>> calls_;
  std::unordered_map<std::string, std::pair<std::shared_ptr<const GroupState>, std::shared_ptr<const Call>>>
      messages_;
};

c10::intrusive_ptr<c10::ivalue::Future> finished_future(std::vector<at::Tensor> tensors);

// Waits for works of gloo, without the GIL; raises what went wrong. False if aborted.
bool wait_for(const std::vector<WorkPtr>& works, const Abort& abort);

// Text that may end within a character.
py::str readable(std::string_view text);

void bind_direct(py::module_& m);

}  // namespace torchtpu::distributed
