// SPDX-License-Identifier: Apache-2.0
// A trace: ops that were recorded and have not run. One per device: the backward pass
// runs on a thread of its own and continues what the forward pass recorded.
//
// Flushing turns a trace into a key, finds or builds the program for the key,
// gathers operands, runs, and hands each live result to its Value. A mode that
// flushes after each op is Strict; nothing else differs.
#pragma once

#include "bridge.h"
#include "flush_log.h"
#include "journal.h"
#include "mode.h"
#include "signature.h"
#include "user_line.h"
#include "value.h"

#include <mutex>
#include <optional>
#include <vector>

namespace torchtpu {

struct NodeInput {
  ValuePtr value;         // null: nothing was ever written there
  Plan plan;
  bool replaced = false;  // this op gives the storage a new value
};

// Bases of updates at or below this are results of the same op: kOwnOutput - its index.
constexpr int kOwnOutput = -2;

struct NodeOutput {
  ValuePtr value;
  int base = -1;    // an update: the input (raw value) it modifies; -1: nothing or unwritten
  bool is_update = false;
  int replaces = -1;  // the input that its storage held before; -1: none
  Plan plan;        // how an update writes
};

struct Node {
  const Signature* signature = nullptr;
  c10::SmallVector<NodeInput, 4> inputs;
  c10::SmallVector<NodeOutput, 2> outputs;
  c10::SmallVector<ScalarWords, 4> scalars;
  UserLine line;
  uint64_t site = 0;    // the calls of its stream so far, whatever the sizes; 0: outside of streams
  uint64_t recent = 0;  // the last calls, likewise
  bool in_backward = false;  // a backward pass recorded it
  bool recomputed = false;  // the backward pass computes it again: activation checkpointing
};

struct Trace {
  std::recursive_mutex mutex;
  c10::DeviceIndex device = 0;
  std::vector<Node> nodes;
  std::vector<Node> failed;  // of the last flush, so that a caller can restore what they replaced
  Journal journal;
  bool recomputing = false;  // whether the last op was a recomputation
};

// Holds a trace's mutex. Never waits for it with the GIL held: its owner may need the GIL.
class TraceLock {
 public:
  explicit TraceLock(Trace& trace) : trace_(trace) {
    if (trace.mutex.try_lock()) {
      return;
    }
    std::optional<py::gil_scoped_release> release;
    if (PyGILState_Check() != 0) {
      release.emplace();
    }
    trace.mutex.lock();
  }
  ~TraceLock() { trace_.mutex.unlock(); }
  TraceLock(const TraceLock&) = delete;
  TraceLock& operator=(const TraceLock&) = delete;

 private:
  Trace& trace_;
};

// The trace of a device.
Trace& device_trace(c10::DeviceIndex device);

// Adds a node; the trace is locked. Runs it now if the mode says so, or the trace if it
// has grown too long: throws what that raises.
void append(Trace& trace, Node&& node);

// Flushes a trace whose stream of ops has grown as far as it may.
void cut_if_full(Trace& trace);

// Runs what the trace holds and ends its stream of ops, unless the reason is kEachOp.
// Takes the GIL. Throws what compiling or running raises; the trace is empty afterwards, what
// failed ops would have written is as it was, and their other results are marked as failed.
void flush(Trace& trace, FlushReason reason);
// Flushes the trace of a device, if it has one.
void flush_device(c10::DeviceIndex device, FlushReason reason);
// The host is about to read a value that is not pending: a boundary if it was made since
// the last one.
void note_host_read(const Value& value);

// The array of a value, after flushing whatever still has to produce it. The GIL is held.
py::object concrete_array(const ValuePtr& value);

// A value with the same bytes in a storage of another size. Takes the GIL.
ValuePtr resized_value(const ValuePtr& value, size_t nbytes);

// Bytes a device may hold; 0: no limit.
void set_memory_limit(c10::DeviceIndex device, int64_t bytes);
// Counts `bytes` more as in use for a moment; throws torch.OutOfMemoryError if the device
// cannot hold them. The GIL is held.
void require_memory(c10::DeviceIndex device, int64_t bytes);
// The same for memory that no recorded op asks for: if it is short, what is recorded runs
// first, and lets go of the operands that it alone holds.
void make_room(c10::DeviceIndex device, int64_t bytes);

// Counters shown by torch.tpu.counters().
struct RunCounters {
  std::atomic<int64_t> ops{0};
  std::atomic<int64_t> runs{0};
  std::atomic<int64_t> hits{0};
  std::atomic<int64_t> compiles{0};
  std::atomic<int64_t> donated_bytes{0};
};
RunCounters& run_counters();

// A program that is being compiled; Python fulfils it, from any thread, or refuses.
struct PendingProgram {
  std::shared_ptr<Program> program;
  void fulfil(py::object made) const;
  void refuse() const;
};

// Forgets all programs (they are rebuilt or reloaded at next use). The GIL is held.
void clear_programs();

}  // namespace torchtpu
