// SPDX-License-Identifier: Apache-2.0
// A trace: ops that were recorded and have not run. One per device: the backward pass
// runs on a thread of its own and continues what the forward pass recorded.
//
// Flushing turns a trace into a key, finds or builds the program for the key,
// gathers operands, runs, and hands each live result to its Value. A mode that
// flushes after each op is Strict; nothing else differs.
#pragma once

#include "signature.h"
#include "user_line.h"
#include "value.h"

#include <mutex>
#include <optional>
#include <vector>

namespace torchtpu {

struct NodeInput {
  ValuePtr value;   // null: nothing was ever written there
  Plan plan;
};

// Bases of updates at or below this are results of the same op: kOwnOutput - its index.
constexpr int kOwnOutput = -2;

struct NodeOutput {
  ValuePtr value;
  int base = -1;    // an update: the input (raw value) it modifies; -1: nothing or unwritten
  bool is_update = false;
  Plan plan;        // how an update writes
  Dims sizes;       // of the result that is written
};

struct Node {
  const Signature* signature = nullptr;
  c10::SmallVector<NodeInput, 4> inputs;
  c10::SmallVector<NodeOutput, 2> outputs;
  c10::SmallVector<ScalarWords, 4> scalars;
  UserLine line;
};

struct Trace {
  std::recursive_mutex mutex;
  c10::DeviceIndex device = 0;
  std::vector<Node> nodes;
  std::vector<Node> failed;  // of the last flush, so that a caller can restore what they replaced
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

// Runs what the trace holds. Takes the GIL. Throws what compiling or running raises;
// the trace is empty afterwards and its values are marked failed.
void flush(Trace& trace, const char* reason);
// Flushes the trace of a device, if it has one.
void flush_device(c10::DeviceIndex device, const char* reason);

// The array of a value, after flushing whatever still has to produce it. The GIL is held.
py::object concrete_array(const ValuePtr& value);

// A value with the same bytes in a storage of another size. Takes the GIL.
ValuePtr resized_value(const ValuePtr& value, size_t nbytes);

// Bytes a device may hold; 0: no limit.
void set_memory_limit(c10::DeviceIndex device, int64_t bytes);
// Throws torch.OutOfMemoryError if the device cannot hold `bytes` more. The GIL is held.
void require_memory(c10::DeviceIndex device, int64_t bytes);

// Counters shown by torch.tpu.counters().
struct RunCounters {
  std::atomic<int64_t> ops{0};
  std::atomic<int64_t> runs{0};
  std::atomic<int64_t> hits{0};
  std::atomic<int64_t> compiles{0};
  std::atomic<int64_t> donated_bytes{0};
};
RunCounters& run_counters();
// Forgets all programs (they are rebuilt or reloaded at next use). The GIL is held.
void clear_programs();

}  // namespace torchtpu
