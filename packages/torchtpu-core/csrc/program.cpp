// SPDX-License-Identifier: Apache-2.0
#include "program.h"

#include "deferred.h"
#include "device.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <atomic>
#include <iterator>
#include <mutex>
#include <unordered_map>

namespace torchtpu {
namespace {

constexpr size_t kMostOfOtherSizes = 1 << 13;

struct Programs {
  std::mutex mutex;
  std::unordered_map<TraceKey, std::vector<Variant>, TraceKeyHash> table;
  std::atomic<size_t> of_other_sizes{0};  // about: those that were filled since the last were forgotten
};

Programs& programs() {
  static auto* the_programs = new Programs();
  return *the_programs;
}

// Whether a program with `known` liveness may serve a layout that needs less.
bool serves(const Liveness& known, const TraceLayout& layout) {
  for (size_t i = 0; i < known.live.size(); ++i) {
    if (layout.liveness.live[i] != 0 && known.live[i] == 0) {
      return false;
    }
  }
  for (const auto& [operand, output] : known.donated) {
    if (!layout.donatable[operand]) {
      return false;
    }
  }
  return true;
}

bool is_of_other_sizes(const Variant& variant) { return variant.program->ready() && !variant.program->compiled; }

// Takes those out of the table; to be dropped without its lock, because Python runs then.
std::vector<Variant> take_those_of_other_sizes() {
  std::vector<Variant> taken;
  std::lock_guard<std::mutex> guard(programs().mutex);
  auto& table = programs().table;
  for (auto it = table.begin(); it != table.end();) {
    std::vector<Variant>& variants = it->second;
    auto rest = std::stable_partition(variants.begin(), variants.end(),
                                      [](const Variant& each) { return !is_of_other_sizes(each); });
    std::move(rest, variants.end(), std::back_inserter(taken));
    variants.erase(rest, variants.end());
    it = variants.empty() ? table.erase(it) : std::next(it);
  }
  programs().of_other_sizes.store(0);
  return taken;
}

void forget_those_of_other_sizes() {
  take_those_of_other_sizes();
#ifdef __GLIBC__
  malloc_trim(0);  // results of many sizes leave holes that are too small for the next ones
#endif
}

py::object host_scalars(c10::ArrayRef<ScalarWords> scalars) {
  static auto* from_buffer = new py::object(py::module_::import("numpy").attr("frombuffer"));
  static auto* dtype = new py::object(py::module_::import("numpy").attr("dtype")("uint32"));
  py::bytes bytes(reinterpret_cast<const char*>(scalars.data()),
                  scalars.size() * sizeof(ScalarWords));
  PyObject* arguments[] = {bytes.ptr(), dtype->ptr()};
  PyObject* array = PyObject_Vectorcall(from_buffer->ptr(), arguments, 2, nullptr);
  if (array == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(array);
}

// The packed scalars of a run. Numbers that repeat stay on the device.
py::object scalar_operand(Program& program, c10::ArrayRef<ScalarWords> scalars,
                          c10::DeviceIndex device) {
  auto same = [](const ScalarWords& a, const ScalarWords& b) {
    return a.words[0] == b.words[0] && a.words[1] == b.words[1] && a.words[2] == b.words[2];
  };
  if (!std::equal(scalars.begin(), scalars.end(), program.last_scalars.begin(),
                  program.last_scalars.end(), same)) {
    program.last_scalars.assign(scalars.begin(), scalars.end());
    program.scalars_on_device = py::object();
    return host_scalars(scalars);
  }
  if (!program.scalars_on_device) {
    program.scalars_on_device = bridge("put")(host_scalars(scalars), static_cast<int>(device));
  }
  return program.scalars_on_device;
}

void hand_out(Trace& trace, TraceLayout& layout, const Program& program, const py::object& result) {
  for (const auto& [operand, output] : layout.liveness.donated) {
    run_counters().donated_bytes.fetch_add(layout.operands[operand]->geometry->nbytes);
    Py_XDECREF(layout.operands[operand]->release_array());
  }
  for (size_t i = 0; i < layout.live.size(); ++i) {
    PyObject* array = PySequence_Fast_GET_ITEM(result.ptr(), program.position[i]);
    Py_INCREF(array);
    Value& value = *layout.live[i]->value;
    value.set_array(array);
    value.trace.store(nullptr);
    note_launch(value);
  }
}

}  // namespace

py::object launch(Program& program, c10::ArrayRef<ValuePtr> operands,
                  c10::ArrayRef<ScalarWords> scalars, c10::DeviceIndex device) {
  c10::SmallVector<PyObject*, 32> arguments;
  for (const ValuePtr& operand : operands) {
    PyObject* array = operand->array.load();
    if (array == nullptr) {
      bridge("raise_failed_operand")();
    }
    if (operand->written.load() != 0) {
      bridge("wait")(py::reinterpret_borrow<py::object>(array));
    }
    arguments.push_back(array);
  }
  py::object words;
  if (!scalars.empty()) {
    words = scalar_operand(program, scalars, device);
    arguments.push_back(words.ptr());
  }
  PyObject* result = PyObject_Vectorcall(program.call.ptr(), arguments.data(), arguments.size(), nullptr);
  if (result == nullptr) {
    py::error_already_set error;
    bridge("raise_of_run")(error.value());
    throw error;
  }
  return py::reinterpret_steal<py::object>(result);
}

Program::~Program() {
  for (py::object* object : {&call, &description, &scalars_on_device}) {
    drop_reference(object->release().ptr());
  }
}

void Program::fill(py::object made) {
  call = made.attr("call");
  position = made.attr("positions").cast<std::vector<int>>();
  has_checks = made.attr("has_checks").cast<bool>();
  compiled = made.attr("compiled").cast<bool>();
  device_time_ps = made.attr("device_time_ps").cast<int64_t>();
  new_bytes = made.attr("new_bytes").cast<int64_t>();
  description = std::move(made);
  programs().of_other_sizes.fetch_add(compiled ? 0 : 1);
  state.store(State::kReady, std::memory_order_release);
}

void PendingProgram::fulfil(py::object made) const { program->fill(std::move(made)); }

void PendingProgram::refuse() const { program->state.store(Program::State::kRefused); }

std::shared_ptr<Program> find_program(Trace& trace, TraceLayout& layout) {
  std::lock_guard<std::mutex> guard(programs().mutex);
  auto it = programs().table.find(layout.key);
  if (it == programs().table.end()) {
    return nullptr;
  }
  std::shared_ptr<Program> exact;
  const Variant* larger = nullptr;
  for (const Variant& variant : it->second) {
    if (variant.liveness == layout.liveness) {
      exact = variant.program;
    } else if (larger == nullptr && variant.program->ready() && serves(variant.liveness, layout)) {
      larger = &variant;
    }
  }
  if ((exact && exact->ready()) || larger == nullptr) {
    return exact;
  }
  adopt(trace, layout, larger->liveness);
  return larger->program;
}

std::shared_ptr<Program> add_program(const TraceKey& key, const Liveness& liveness,
                                     std::shared_ptr<Program> program) {
  if (programs().of_other_sizes.load() > kMostOfOtherSizes) {
    forget_those_of_other_sizes();
  }
  std::lock_guard<std::mutex> guard(programs().mutex);
  std::vector<Variant>& variants = programs().table[key];
  for (Variant& variant : variants) {
    if (variant.liveness == liveness) {
      return variant.program;
    }
  }
  variants.push_back({liveness, program});
  return program;
}

std::shared_ptr<Program> build_program(const Trace& trace, const TraceLayout& layout) {
  auto program = std::make_shared<Program>();
  program->fill(bridge("build_program")(describe_trace(trace, layout)));
  run_counters().compiles.fetch_add(program->compiled ? 1 : 0);
  return add_program(layout.key, layout.liveness, std::move(program));
}

void run_program(Trace& trace, TraceLayout& layout, Program& program) {
  require_memory(trace.device, program.new_bytes);
  py::object result = launch(program, layout.operands, layout.scalars, trace.device);
  run_counters().runs.fetch_add(1);
  hand_out(trace, layout, program, result);
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

void clear_programs() {
  decltype(Programs::table) taken;  // dropped without the lock, because Python runs then
  std::lock_guard<std::mutex> guard(programs().mutex);
  taken.swap(programs().table);
}

}  // namespace torchtpu
