// SPDX-License-Identifier: Apache-2.0
#include "trace.h"

#include "ahead.h"
#include "device.h"
#include "program.h"
#include "rerun.h"
#include "trace_key.h"

#include <unordered_map>

namespace torchtpu {
namespace {

std::atomic<int64_t> memory_limit[kMaxDevices];

// The error of an op that ran later than it was called, with the line of the call.
std::exception_ptr at_line(const UserLine& line) {
  try {
    throw;
  } catch (py::error_already_set& error) {
    bridge("add_line")(error.value(), line.describe());
    return std::current_exception();
  } catch (c10::Error& error) {
    error.add_context("recorded at " + line.describe());
    return std::current_exception();
  } catch (...) {
    return std::current_exception();
  }
}

void fail(std::vector<Node>& nodes) {
  for (Node& node : nodes) {
    for (NodeOutput& output : node.outputs) {
      output.value->failed = true;
      output.value->trace.store(nullptr);
    }
  }
}

// One op as a program of its own. If it has none yet, `rest`, the ops that come next, are
// given theirs too. True if those of several ops were built.
bool run_alone(Trace& trace, std::span<Node> rest = {}) {
  TraceLayout layout = lay_out(trace);
  auto program = find_program(trace, layout);
  bool built = false;
  if (!program && !rest.empty()) {
    built = build_ahead(trace, layout, rest);
    program = find_program(trace, layout);
  }
  if (program) {
    run_counters().hits.fetch_add(1);
  } else {
    program = build_program(trace, layout);
    if (program->compiled) {
      trace.journal.built_alone();
    }
  }
  run_program(trace, layout, *program);
  remember_run(trace, layout, program);
  return built;
}

bool has_failed_input(const Node& node) {
  for (const NodeInput& input : node.inputs) {
    if (input.value && input.value->failed) {
      return true;
    }
  }
  return false;
}

// Runs the trace op by op, as Strict would have. What depends on an op that failed fails
// too; the first error is raised at the end. True if programs were built side by side.
bool replay(Trace& trace) {
  std::vector<Node> nodes = std::move(trace.nodes);
  trace.nodes.clear();
  std::exception_ptr first_error;
  for (Node& node : nodes) {
    for (NodeOutput& output : node.outputs) {
      output.value->node = 0;  // of a trace of its own
    }
  }
  bool built = false;
  for (size_t i = 0; i < nodes.size(); ++i) {
    Node& node = nodes[i];
    bool dependent = has_failed_input(node);
    trace.nodes.push_back(std::move(node));
    try {
      if (dependent) {
        fail(trace.nodes);
      } else {
        built |= run_alone(trace, built ? std::span<Node>() : std::span(nodes).subspan(i + 1));
      }
    } catch (...) {
      fail(trace.nodes);
      if (!first_error) {
        first_error = at_line(trace.nodes[0].line);
      }
    }
    trace.nodes.clear();
  }
  nodes.clear();
  trace.nodes.swap(nodes);  // keeps its memory for the next trace
  if (first_error) {
    std::rethrow_exception(first_error);
  }
  return built;
}

// The program of a trace of several ops: known, on disk, or asked for. Null or not ready:
// the ops have to run one by one.
std::shared_ptr<Program> find_or_request(Trace& trace, TraceLayout& layout, FlushRecord& record) {
  auto known = find_program(trace, layout);
  if (known) {
    return known;
  }
  py::object description = describe_trace(trace, layout);
  auto program = std::make_shared<Program>();
  py::object loaded = bridge("lookup_program")(description);
  if (!loaded.is_none()) {
    program->fill(std::move(loaded));
    return add_program(layout.key, layout.liveness, std::move(program));
  }
  bool in_loop = record.reason == FlushReason::kOpLimit && trace.journal.cut_in_loop();
  if (in_loop || !trace.journal.repeats()) {
    return nullptr;
  }
  program = add_program(layout.key, layout.liveness, std::move(program));
  record.compile_requested = true;
  run_counters().compiles.fetch_add(1);
  bridge("request_program")(description, PendingProgram{program}, name_of(record.reason),
                            fusion_policy().background.load());
  return program;
}

// Runs the program of the whole trace, if there is one; else `pending` is the one that was asked
// for. The layout holds the trace's operands, and must be gone when the ops run one by one: an
// operand that is held is not donated.
bool run_whole(Trace& trace, FlushRecord& record, std::shared_ptr<Program>& pending) {
  TraceLayout layout = lay_out(trace);
  auto program = find_or_request(trace, layout, record);
  if (!program || !program->ready()) {
    pending = std::move(program);
    return false;
  }
  run_counters().hits.fetch_add(record.compile_requested ? 0 : 1);
  trace.journal.hit();
  try {
    run_program(trace, layout, *program);
  } catch (py::error_already_set&) {  // op by op, the error is raised at the op's line
    return false;
  }
  return true;
}

void run_together(Trace& trace, FlushRecord& record) {
  std::shared_ptr<Program> pending;
  if (!run_whole(trace, record, pending)) {
    record.outcome = Outcome::kOpByOp;
    bool built = replay(trace);
    trace.journal.miss(std::move(pending), built);
  }
}

void run(Trace& trace, FlushReason reason) {
  py::gil_scoped_acquire gil;
  drop_dead_references();
  FlushRecord record;
  record.reason = reason;
  record.device = trace.device;
  record.ops = static_cast<uint32_t>(trace.nodes.size());
  record.line = trace.nodes.back().line;
  try {
    if (trace.nodes.size() == 1) {
      run_alone(trace);
    } else {
      run_together(trace, record);
    }
  } catch (...) {
    fail(trace.nodes);
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
  auto position = static_cast<uint32_t>(trace.nodes.size());
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    Value& value = *node.outputs[i].value;
    value.node = position;
    value.output = static_cast<uint32_t>(i);
    value.line = node.line;
    value.trace.store(&trace);
  }
  const ModePolicy& policy = mode_policy();
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
    bool ends;
    bool with_piece;
    ~Ending() {
      if (ends) {
        trace.journal.end(with_piece);
      }
    }
  } ending{trace, reason != FlushReason::kEachOp, reason == FlushReason::kLoop};
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

}  // namespace torchtpu
