// SPDX-License-Identifier: Apache-2.0
#include "trace.h"

#include "deferred.h"
#include "device.h"
#include "trace_key.h"

#include <algorithm>
#include <memory>
#include <unordered_map>

namespace torchtpu {
namespace {

// A compiled program and what C++ needs to run it; filled from Python's description.
struct Program {
  py::object call;            // (operands..., scalar words) -> sequence of arrays
  py::object description;     // for messages of its checks
  std::vector<int> position;  // live output -> index in the call's result
  bool has_checks = false;
  int64_t device_time_ps = 0;
  int64_t output_bytes = 0;
  // Scalars of the last run, and the same on the device once they have come twice.
  std::vector<ScalarWords> last_scalars;
  py::object scalars_on_device;
};

struct Programs {
  std::mutex mutex;
  std::unordered_map<TraceKey, std::shared_ptr<Program>, TraceKeyHash> table;
};

Programs& programs() {
  static auto* the_programs = new Programs();
  return *the_programs;
}

std::atomic<int64_t> memory_limit[kMaxDevices];

std::shared_ptr<Program> build(const Trace& trace, const TraceLayout& layout) {
  run_counters().compiles.fetch_add(1);
  py::object made = bridge("build_program")(describe_trace(trace, layout));
  auto program = std::make_shared<Program>();
  program->call = made.attr("call");
  program->position = made.attr("positions").cast<std::vector<int>>();
  program->has_checks = made.attr("has_checks").cast<bool>();
  program->device_time_ps = made.attr("device_time_ps").cast<int64_t>();
  program->output_bytes = made.attr("output_bytes").cast<int64_t>();
  program->description = std::move(made);
  return program;
}

std::shared_ptr<Program> find_or_build(const Trace& trace, const TraceLayout& layout) {
  {
    std::lock_guard<std::mutex> guard(programs().mutex);
    auto it = programs().table.find(layout.key);
    if (it != programs().table.end()) {
      run_counters().hits.fetch_add(1);
      return it->second;
    }
  }
  auto program = build(trace, layout);
  std::lock_guard<std::mutex> guard(programs().mutex);
  return programs().table.emplace(layout.key, program).first->second;
}

py::object host_scalars(const TraceLayout& layout) {
  static auto* from_buffer = new py::object(py::module_::import("numpy").attr("frombuffer"));
  static auto* dtype = new py::object(py::module_::import("numpy").attr("dtype")("uint32"));
  py::bytes bytes(reinterpret_cast<const char*>(layout.scalars.data()),
                  layout.scalars.size() * sizeof(ScalarWords));
  PyObject* arguments[] = {bytes.ptr(), dtype->ptr()};
  PyObject* array = PyObject_Vectorcall(from_buffer->ptr(), arguments, 2, nullptr);
  if (array == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(array);
}

// The packed scalars of a run. Numbers that repeat stay on the device.
py::object scalar_operand(Program& program, const TraceLayout& layout, c10::DeviceIndex device) {
  auto same = [](const ScalarWords& a, const ScalarWords& b) {
    return a.words[0] == b.words[0] && a.words[1] == b.words[1] && a.words[2] == b.words[2];
  };
  if (!std::equal(layout.scalars.begin(), layout.scalars.end(), program.last_scalars.begin(),
                  program.last_scalars.end(), same)) {
    program.last_scalars = layout.scalars;
    program.scalars_on_device = py::object();
    return host_scalars(layout);
  }
  if (!program.scalars_on_device) {
    program.scalars_on_device = bridge("put")(host_scalars(layout), static_cast<int>(device));
  }
  return program.scalars_on_device;
}

// Runs the program; the GIL is held.
py::object launch(Program& program, const TraceLayout& layout, c10::DeviceIndex device) {
  c10::SmallVector<PyObject*, 32> arguments;
  for (const ValuePtr& operand : layout.operands) {
    PyObject* array = operand->array.load();
    if (array == nullptr) {
      bridge("raise_failed_operand")();
    }
    arguments.push_back(array);
  }
  py::object scalars;
  if (!layout.scalars.empty()) {
    scalars = scalar_operand(program, layout, device);
    arguments.push_back(scalars.ptr());
  }
  PyObject* result = PyObject_Vectorcall(program.call.ptr(), arguments.data(), arguments.size(), nullptr);
  if (result == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(result);
}

void write_back(Trace& trace, TraceLayout& layout, const Program& program, const py::object& result) {
  for (int index : layout.donated) {
    run_counters().donated_bytes.fetch_add(layout.operands[index]->geometry->nbytes);
    Py_XDECREF(layout.operands[index]->release_array());
  }
  for (size_t i = 0; i < layout.live.size(); ++i) {
    PyObject* array = PySequence_Fast_GET_ITEM(result.ptr(), program.position[i]);
    Py_INCREF(array);
    const ValuePtr& value = layout.live[i]->value;
    value->set_array(array);
    value->trace.store(nullptr);
    note_launch(*value);
  }
  if (program.has_checks) {
    std::vector<UserLine> lines;
    for (const Node& node : trace.nodes) {
      lines.push_back(node.line);
    }
    Py_ssize_t last = PySequence_Fast_GET_SIZE(result.ptr()) - 1;
    defer(trace.device,
          py::reinterpret_borrow<py::object>(PySequence_Fast_GET_ITEM(result.ptr(), last)),
          program.description, std::move(lines));
  }
  if (program.device_time_ps > 0) {
    add_device_time(trace.device, program.device_time_ps);
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

void flush(Trace& trace, const char* /*reason*/) {
  TraceLock lock(trace);
  if (trace.nodes.empty()) {
    return;
  }
  TraceLayout layout = lay_out(trace);
  py::gil_scoped_acquire gil;
  drop_dead_references();
  try {
    auto program = find_or_build(trace, layout);
    require_memory(trace.device, program->output_bytes);
    py::object result = launch(*program, layout, trace.device);
    run_counters().runs.fetch_add(1);
    write_back(trace, layout, *program, result);
  } catch (...) {
    fail(trace.nodes);
    trace.failed = std::move(trace.nodes);
    trace.nodes.clear();
    throw;
  }
  trace.nodes.clear();
}

void flush_device(c10::DeviceIndex device, const char* reason) {
  flush(device_trace(device), reason);
}

py::object concrete_array(const ValuePtr& value) {
  if (Trace* producer = value->trace.load()) {
    py::gil_scoped_release release;
    flush(*producer, "host read");
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
  if (limit != 0 && allocated + bytes > limit) {
    memory_counters(device).failures.fetch_add(1);
    bridge("raise_out_of_memory")(static_cast<int>(device), bytes, allocated, limit);
  }
}

void clear_programs() {
  std::lock_guard<std::mutex> guard(programs().mutex);
  programs().table.clear();
}

}  // namespace torchtpu
