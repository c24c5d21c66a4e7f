// SPDX-License-Identifier: Apache-2.0
#include "trace.h"

#include "device.h"
#include "recomputation.h"
#include "replay.h"
#include "trace_key.h"

#include <algorithm>
#include <unordered_map>

namespace torchtpu {
namespace {

std::atomic<int64_t> memory_limit[kMaxDevices];

// The last line that is known: what adds up gradients has none.
UserLine last_line(const std::vector<Node>& nodes) {
  auto known = std::find_if(nodes.rbegin(), nodes.rend(),
                            [](const Node& node) { return node.line.code != nullptr; });
  return known == nodes.rend() ? UserLine() : known->line;
}

void run(Trace& trace, FlushReason reason) {
  py::gil_scoped_acquire gil;
  drop_dead_references();
  FlushRecord record;
  record.reason = reason;
  record.device = trace.device;
  record.ops = static_cast<uint32_t>(trace.nodes.size());
  record.line = last_line(trace.nodes);
  try {
    if (trace.nodes.size() == 1) {
      run_single(trace);
    } else {
      run_together(trace, record);
    }
  } catch (...) {
    fail(trace.nodes);
    keep_contents(trace.nodes);
    trace.failed = std::move(trace.nodes);
    trace.nodes.clear();
    throw;
  }
  trace.nodes.clear();
  if (reason != FlushReason::kEachOp) {
    note_flush(record);
  }
}

// Bytes of operands that nobody but the trace holds.
int64_t held_bytes(Trace& trace) {
  int64_t bytes = 0;
  std::unordered_map<const Value*, uint32_t> uses;
  for (const Node& node : trace.nodes) {
    for (const NodeInput& input : node.inputs) {
      if (input.value && input.value->trace.load() == nullptr &&
          ++uses[input.value.get()] == input.value.use_count()) {
        bytes += input.value->geometry->nbytes;
      }
    }
  }
  return bytes;
}

// Whether the trace has grown as far as it may, and why.
std::optional<FlushReason> limit_reached(Trace& trace) {
  const FusionPolicy& policy = fusion_policy();
  if (trace.journal.piece_ends()) {
    return FlushReason::kLoop;
  }
  if (trace.journal.length() >= policy.max_ops.load(std::memory_order_relaxed)) {
    return FlushReason::kOpLimit;
  }
  if (trace.journal.operand_bytes() > policy.max_held_bytes.load(std::memory_order_relaxed)) {
    if (held_bytes(trace) > policy.max_held_bytes.load(std::memory_order_relaxed)) {
      return FlushReason::kMemoryLimit;
    }
    trace.journal.forgive_operand_bytes(0);
  }
  return std::nullopt;
}

}  // namespace

RunCounters& run_counters() {
  static auto* counters = new RunCounters();
  return *counters;
}

Trace& device_trace(c10::DeviceIndex device) {
  static auto* traces = [] {
    auto* made = new Trace[kMaxDevices];
    for (int i = 0; i < kMaxDevices; ++i) {
      made[i].device = static_cast<c10::DeviceIndex>(i);
    }
    return made;
  }();
  return traces[device];
}

void append(Trace& trace, Node&& node) {
  bool alone = node.signature->op->alone;
  if (alone) {
    flush(trace, FlushReason::kCompiledGraph);
  }
  const ModePolicy& policy = mode_policy();
  if (node.recomputed && !trace.recomputing && cuts_recomputation() &&
      !policy.flush_each.load(std::memory_order_relaxed)) {
    flush(trace, FlushReason::kRecomputation);
  }
  if (trace.journal.round_ends(node.in_backward)) {
    flush(trace, FlushReason::kBackward);
  }
  trace.recomputing = node.recomputed;
  auto position = static_cast<uint32_t>(trace.nodes.size());
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    Value& value = *node.outputs[i].value;
    value.node = position;
    value.output = static_cast<uint32_t>(i);
    value.line = node.line;
    value.trace.store(&trace);
  }
  bool deferring = !alone && !policy.flush_each.load(std::memory_order_relaxed);
  if (deferring) {
    trace.journal.note(node);
    deferring = !trace.journal.immediate();
  }
  trace.nodes.push_back(std::move(node));
  run_counters().ops.fetch_add(1, std::memory_order_relaxed);
  if (!deferring) {
    flush(trace, FlushReason::kEachOp);
  }
  if (!alone && !policy.flush_each.load(std::memory_order_relaxed)) {
    cut_if_full(trace);
  }
}

void cut_if_full(Trace& trace) {
  if (auto reason = limit_reached(trace)) {
    flush(trace, *reason);
  }
}

void flush(Trace& trace, FlushReason reason) {
  TraceLock lock(trace);
  struct Ending {
    Trace& trace;
    FlushReason reason;
    ~Ending() {
      if (reason != FlushReason::kEachOp) {
        trace.journal.end(reason);
      }
    }
  } ending{trace, reason};
  if (!trace.nodes.empty()) {
    run(trace, reason);
  }
}

void flush_device(c10::DeviceIndex device, FlushReason reason) {
  flush(device_trace(device), reason);
}

void note_host_read(const Value& value) {
  Trace& trace = device_trace(value.device);
  if (trace.journal.immediate() && value.epoch == trace.journal.epoch() &&
      (value.place & kFromOutside) == 0) {
    flush(trace, FlushReason::kHostRead);
  }
}

py::object concrete_array(const ValuePtr& value) {
  if (Trace* producer = value->trace.load()) {
    py::gil_scoped_release release;
    flush(*producer, FlushReason::kHostRead);
  }
  PyObject* array = value->array.load();
  if (array == nullptr) {
    bridge("raise_failed_operand")();
  }
  return py::reinterpret_borrow<py::object>(array);
}

ValuePtr resized_value(const ValuePtr& value, size_t nbytes) {
  py::gil_scoped_acquire gil;
  const Geometry& old = *value->geometry;
  auto numel = static_cast<int64_t>(nbytes / c10::elementSize(old.dtype));
  auto fresh = c10::make_intrusive<Value>(flat_geometry(numel, old.dtype), value->device);
  py::object array = bridge("resized")(concrete_array(value), describe_geometry(&old), numel);
  fresh->set_array(array.release().ptr());
  return fresh;
}

void set_memory_limit(c10::DeviceIndex device, int64_t bytes) { memory_limit[device].store(bytes); }

void require_memory(c10::DeviceIndex device, int64_t bytes) {
  int64_t limit = memory_limit[device].load();
  int64_t allocated = memory_counters(device).allocated.load();
  if (limit == 0 || allocated + bytes <= limit) {
    raise_peak(device, allocated + bytes);
  }
  if (limit != 0 && allocated + bytes > limit) {
    memory_counters(device).failures.fetch_add(1);
    bridge("raise_out_of_memory")(static_cast<int>(device), bytes, allocated, limit);
  }
}

void make_room(c10::DeviceIndex device, int64_t bytes) {
  int64_t limit = memory_limit[device].load();
  if (limit != 0 && memory_counters(device).allocated.load() + bytes > limit) {
    py::gil_scoped_release release;
    flush_device(device, FlushReason::kMemoryLimit);
  }
  require_memory(device, bytes);
}

}  // namespace torchtpu
