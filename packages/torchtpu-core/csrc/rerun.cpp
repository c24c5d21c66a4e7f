// SPDX-License-Identifier: Apache-2.0
#include "rerun.h"

#include "allocator.h"
#include "device.h"
#include "recording.h"

namespace torchtpu {
namespace {

bool runs_when_called(const OpInfo& op) {
  const ModePolicy& policy = mode_policy();
  return op.alone || policy.flush_each.load(std::memory_order_relaxed);
}

// The operands' values, if they lie as those of the last run.
bool gather(const LastRun& last, const Call& call, c10::SmallVectorImpl<ValuePtr>& values) {
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const at::Tensor& tensor = *call.tensors[i];
    Slot* slot = slot_of(tensor);
    ValuePtr value = slot->get();
    if (!value || value->geometry != last.operands[i] || offset_in_slot(tensor, *slot) != 0 ||
        value->trace.load() != nullptr || value->array.load() == nullptr) {
      return false;
    }
    for (const ValuePtr& other : values) {
      if (other == value) {
        return false;  // one operand of the program
      }
    }
    values.push_back(std::move(value));
  }
  return true;
}

at::Tensor result_tensor(const TensorSpec& spec, c10::DeviceIndex device, PyObject* array,
                         const UserLine& line) {
  at::Tensor tensor = new_tensor(device, spec.sizes, spec.strides, spec.dtype);
  auto value = c10::make_intrusive<Value>(spec.geometry, device);
  Slot* slot = slot_of(tensor);
  value->home = slot;
  value->line = line;
  Py_INCREF(array);
  value->set_array(array);
  note_launch(*value);
  slot->exchange(std::move(value));
  return tensor;
}

}  // namespace

void remember_run(const Trace& trace, const TraceLayout& layout,
                  const std::shared_ptr<Program>& program) {
  const Node& node = trace.nodes[0];
  const Signature& signature = *node.signature;
  bool simple = signature.written.empty() && !signature.op->random && !program->has_checks &&
                layout.liveness.donated.empty() && !node.inputs.empty() &&
                layout.operands.size() == node.inputs.size() &&
                node.inputs.size() <= LastRun::kMaxOperands;
  for (const NodeInput& input : node.inputs) {
    simple = simple && input.value && input.plan.kind == PlanKind::kIdentity;
  }
  if (!simple) {
    return;
  }
  LastRun& last = signature.last_run;
  last.operands.clear();
  for (const NodeInput& input : node.inputs) {
    last.operands.push_back(input.value->geometry);
  }
  last.device = trace.device;
  last.program = program;
}

bool run_again(const Signature& signature, const Call& call, Results& results) {
  if (!runs_when_called(*signature.op) || call.device < 0) {
    return false;
  }
  Trace& trace = device_trace(call.device);
  TraceLock lock(trace);
  if (!trace.nodes.empty()) {
    return false;
  }
  py::gil_scoped_acquire gil;
  const LastRun& last = signature.last_run;
  std::shared_ptr<Program> program = last.program.lock();
  if (!program || last.device != call.device || last.operands.size() != call.tensors.size()) {
    return false;
  }
  c10::SmallVector<ValuePtr, LastRun::kMaxOperands> values;
  if (!gather(last, call, values)) {
    return false;
  }
  drop_dead_references();
  UserLine line = current_user_line();
  require_memory(call.device, program->new_bytes);
  py::object arrays = launch(*program, values, call.scalars, call.device);
  RunCounters& counters = run_counters();
  counters.ops.fetch_add(1, std::memory_order_relaxed);
  counters.runs.fetch_add(1, std::memory_order_relaxed);
  counters.hits.fetch_add(1, std::memory_order_relaxed);
  size_t index = 0;
  for (const OutSpec& out : signature.outs) {
    for (const TensorSpec& spec : out.tensors) {
      PyObject* array = PySequence_Fast_GET_ITEM(arrays.ptr(), program->position[index++]);
      results.push_back(result_tensor(spec, call.device, array, line));
    }
  }
  if (program->device_time_ps > 0) {
    add_device_time(call.device, program->device_time_ps);
  }
  return true;
}

}  // namespace torchtpu
