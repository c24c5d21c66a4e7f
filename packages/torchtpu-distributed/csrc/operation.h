// SPDX-License-Identifier: Apache-2.0
// A collective of the short way that runs while its caller does something else, from its call
// to its end, and the list of those that are not over.
//
// Those of a group are over in the order of their calls, whatever gloo's threads finish first: who
// has waited for one has waited for those before it, as on a stream. DDP relies on it.
//
// gloo's own threads run it once it has begun, and note its end here. No thread of theirs ever
// waits, asks Python, runs a callback of the user's or drops a gloo backend: what needs that is
// left to threads behind (threads.h). So an operation keeps neither its group nor gloo.
#pragma once

#include "abort.h"
#include "native.h"
#include "pending.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>

namespace torchtpu::distributed {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

class Operations;

// Bytes of a tensor's storage. Tensors on the same memory share the storage while one of them lives.
struct Span {
  explicit Span(const at::Tensor& tensor);
  bool overlaps(const Span& other) const {
    return storage == other.storage && first < other.last && other.first < last;
  }

  const void* storage;
  size_t first = 0;
  size_t last;  // after it
};

// Memory of a storage that a collective writes: programs that read it wait while this lives.
// Collectives on different bytes of it, and results of one, share this, so that the tensor's
// memory counts as its own.
struct Written : c10::intrusive_ptr_target {
  Written(const void* storage_in, c10::intrusive_ptr<Owner> memory);
  ~Written() override;

  const void* const storage;
  const c10::intrusive_ptr<Owner> owner;
};
using WrittenPtr = c10::intrusive_ptr<Written>;
// The one of a storage, or null.
WrittenPtr written_of(const std::vector<WrittenPtr>& all, const void* storage);

struct Results {
  Tensors tensors;
  bool stacked = false;  // a future holds them as one tensor

  Tensors of_future() const;
};

class Operation : public std::enable_shared_from_this<Operation> {
 public:
  // What to do at its end, and how it begins: see direct.h.
  using End = std::function<void()>;
  using Start = std::function<std::vector<WorkPtr>(c10d::Backend& gloo, End& end)>;
  // Finds out why it failed, and gives the Python error; the GIL is held. `how` is a method of
  // HostRunner, `said` what gloo or another rank told.
  using Explain = std::function<py::object(const char* how, const PendingPtr& record, const std::string& said)>;

  // `memory` and `spans`: what it reads and writes; `written` is of that.
  Operation(PendingPtr record, std::vector<Memory> memory, std::vector<WrittenPtr> written,
            std::vector<Span> spans, Results results, Start start, Explain explain,
            std::shared_ptr<Records> records, std::shared_ptr<Operations> all);

  const PendingPtr& record() const { return record_; }
  const Tensors& results() const { return results_.tensors; }
  bool uses(const void* storage) const;
  bool uses(const Span& span) const;
  // What it writes of a storage; null if that is nothing, or it is over.
  WrittenPtr written(const void* storage) const;
  // Whether its memory has a byte of these.
  bool uses(uintptr_t first, size_t nbytes) const;

  // Starts gloo, whose threads bring it to its end.
  void begin(c10d::Backend& gloo);
  bool has_begun() const { return state_.load() != State::kCalled; }
  bool is_over() const { return state_.load() >= State::kDone; }
  bool is_done() const { return state_.load() == State::kDone; }

  // Waits for gloo without the GIL, once it has begun; false if aborted.
  bool await(const Abort& abort);
  // Raises why it failed, if it is over and did; without the GIL.
  void rethrow() const;

  // Ends it with an error that `explain` finds, in a thread behind.
  void fail_behind(const char* how, std::string said);
  // Ends it with a Python error; the GIL is held. Its memory is kept for ever.
  void fail(const py::object& error);
  // Ends it well, in its turn; see Operations::finished.
  void succeed() { close(State::kDone); }

  // Of the results; it is completed in a thread behind.
  c10::intrusive_ptr<c10::ivalue::Future> future();

 private:
  enum class State { kCalled, kBegun, kDone, kFailed };

  void arrived(c10::ivalue::Future& work);
  void finish();
  void settle(c10::ivalue::Future& future) const;
  void close(State how, std::exception_ptr error = nullptr);

  const PendingPtr record_;
  std::vector<Memory> memory_;
  std::vector<WrittenPtr> written_;
  const std::vector<Span> spans_;
  const Results results_;
  Start start_;
  End end_;
  const Explain explain_;
  const std::shared_ptr<Records> records_;
  const std::shared_ptr<Operations> all_;
  std::atomic<State> state_{State::kCalled};
  std::atomic<bool> closed_{false};  // its end has come; the first that brings it counts
  std::atomic<size_t> left_{0};  // works of gloo that have not ended
  mutable std::mutex mutex_;     // of what follows, and of the memory; nobody waits for the GIL in it
  std::vector<WorkPtr> works_;
  std::exception_ptr error_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};
using OperationPtr = std::shared_ptr<Operation>;

// Those of a process that are not over. Any thread may call it.
class Operations {
 public:
  // What the last of those that use a tensor's storage writes, or null.
  WrittenPtr written(const at::Tensor& tensor) const;
  // In the order of their calls.
  void add(const OperationPtr& operation);
  // Its results are there: it and those that wait for it end, if those before it have.
  void finished(const Operation& operation);
  void remove(const Operation& operation);
  bool idle() const { return count_.load() == 0; }
  bool idle_in(const GroupState& group) const;
  std::vector<OperationPtr> all() const;
  // Waits for those that `matches` accepts, however they end, or until aborted; the GIL is held.
  void wait_for(const std::function<bool(const Operation&)>& matches, const Abort& abort) const;

 private:
  struct Entry {
    OperationPtr operation;
    bool finished = false;
    bool ending = false;
  };
  void end_in_order(std::unique_lock<std::mutex>& lock);
  OperationPtr next_to_end();

  mutable std::mutex mutex_;
  std::vector<Entry> list_;
  std::atomic<size_t> count_{0};
  bool ending_ = false;  // a thread is in end_in_order
};

}  // namespace torchtpu::distributed
