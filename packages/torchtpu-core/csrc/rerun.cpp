// SPDX-License-Identifier: Apache-2.0
#include "rerun.h"

#include "allocator.h"
#include "device.h"
#include "recomputation.h"
#include "recording.h"
#include "trace_key.h"

#include <algorithm>

namespace torchtpu {
namespace {

// Whether the op is part of a stream that the journal follows.
bool is_followed(const OpInfo& op) {
  return !op.alone && !mode_policy().flush_each.load(std::memory_order_relaxed);
}

// Tells the journal of an op that has run.
void follow(Trace& trace, const Signature& signature, c10::ArrayRef<ValuePtr> operands,
            c10::ArrayRef<at::Tensor> results, c10::ArrayRef<const at::Tensor*> written,
            const UserLine& line) {
  Node node;
  node.signature = &signature;
  node.line = line;
  node.in_backward = in_backward();
  for (size_t i = 0; i < operands.size(); ++i) {
    node.inputs.push_back({operands[i], Plan{signature.last_run.operands[i].plan, nullptr}, false});
  }
  auto add_output = [&](const at::Tensor& tensor) {
    node.outputs.emplace_back();
    node.outputs.back().value = slot_of(tensor)->get();
  };
  std::for_each(results.begin(), results.end(), add_output);
  for (const at::Tensor* tensor : written) {
    add_output(*tensor);
  }
  trace.journal.note(node);
  cut_if_full(trace);
}

// The operands' values, if they lie as those of the last run.
bool gather(const LastRun& last, const Call& call, c10::SmallVectorImpl<ValuePtr>& values) {
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const at::Tensor& tensor = *call.tensors[i];
    Slot* slot = slot_of(tensor);
    ValuePtr value = slot->get();
    if (!value || value->geometry != last.operands[i].geometry ||
        offset_in_slot(tensor, *slot) != last.operands[i].offset ||
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

// Whether the written tensors fill their storages as those of the last run did, and the run
// may take the memory of the same operands.
bool writes_as(const LastRun& last, c10::ArrayRef<const at::Tensor*> written,
               c10::ArrayRef<ValuePtr> operands) {
  c10::SmallVector<const Value*, 2> replaced;
  for (size_t i = 0; i < written.size(); ++i) {
    Slot* slot = slot_of(*written[i]);
    if (!covers(*written[i], *slot) || !lies_as(*written[i], *last.writes[i])) {
      return false;
    }
    replaced.push_back(slot->get().get());
  }
  for (size_t i = 0; i < operands.size() && !written.empty(); ++i) {
    bool is_replaced = std::find(replaced.begin(), replaced.end(), operands[i].get()) !=
                       replaced.end();
    if (last.dies[i] != (is_replaced && is_donatable(operands[i], 2))) {  // its slot and ours
      return false;
    }
  }
  return true;
}

void fill(const at::Tensor& tensor, const Geometry* geometry, c10::DeviceIndex device,
          PyObject* array, const UserLine& line) {
  auto value = c10::make_intrusive<Value>(geometry, device);
  Slot* slot = slot_of(tensor);
  value->home = slot;
  value->line = line;
  Py_INCREF(array);
  value->set_array(array);
  note_launch(*value);
  slot->exchange(std::move(value));
}

}  // namespace

void remember_run(const Trace& trace, const TraceLayout& layout,
                  const std::shared_ptr<Program>& program) {
  const Node& node = trace.nodes[0];
  const Signature& signature = *node.signature;
  bool simple = !signature.op->random && !program->has_checks && !node.inputs.empty() &&
                layout.operands.size() == node.inputs.size() &&
                node.inputs.size() <= LastRun::kMaxOperands;
  for (const NodeInput& input : node.inputs) {
    simple = simple && input.value && input.plan.kind != PlanKind::kUnset;
  }
  for (const NodeOutput& output : node.outputs) {
    simple = simple && !output.is_update && output.value->geometry->numel > 0;
  }
  if (!simple) {
    return;
  }
  LastRun& last = signature.last_run;
  last.operands.clear();
  last.starts.clear();
  last.writes.clear();
  last.dies.assign(layout.donatable.begin(), layout.donatable.end());
  last.donated.assign(node.inputs.size(), false);
  for (const auto& [operand, output] : layout.liveness.donated) {
    last.donated[static_cast<size_t>(operand)] = true;
  }
  for (size_t i = node.outputs.size() - signature.written.size(); i < node.outputs.size(); ++i) {
    last.writes.push_back(node.outputs[i].value->geometry);
  }
  for (const NodeInput& input : node.inputs) {
    last.operands.push_back({input.value->geometry, input.plan.offset(), input.plan.kind});
    for (int64_t start : input.plan.starts()) {
      last.starts.push_back(pack_int(start));
    }
  }
  last.device = trace.device;
  last.program = program;
}

bool run_again(const Signature& signature, const Call& call, c10::ArrayRef<const at::Tensor*> written,
               Results& results) {
  if (call.device < 0) {
    return false;
  }
  Trace& trace = device_trace(call.device);
  bool followed = is_followed(*signature.op);
  if (followed && !trace.journal.immediate()) {
    return false;
  }
  TraceLock lock(trace);
  if (!trace.nodes.empty() || (followed && !trace.journal.immediate())) {
    return false;
  }
  if (followed &&
      (is_recomputation() != trace.recomputing || trace.journal.round_ends(in_backward()))) {
    return false;  // the stream may end before this op
  }
  py::gil_scoped_acquire gil;
  const LastRun& last = signature.last_run;
  std::shared_ptr<Program> program = last.program.lock();
  if (!program || last.device != call.device || last.operands.size() != call.tensors.size() ||
      last.writes.size() != written.size()) {
    return false;
  }
  c10::SmallVector<ValuePtr, LastRun::kMaxOperands> values;
  if (!gather(last, call, values) || !writes_as(last, written, values)) {
    return false;
  }
  drop_dead_references();
  UserLine line = current_user_line();
  require_memory(call.device, program->new_bytes);
  c10::SmallVector<ScalarWords, 8> words(last.starts.begin(), last.starts.end());
  words.append(call.scalars.begin(), call.scalars.end());
  py::object arrays = launch(*program, values, words, call.device);
  RunCounters& counters = run_counters();
  for (size_t i = 0; i < values.size(); ++i) {
    if (last.donated[i]) {
      counters.donated_bytes.fetch_add(values[i]->geometry->nbytes, std::memory_order_relaxed);
      Py_XDECREF(values[i]->release_array());
    }
  }
  counters.ops.fetch_add(1, std::memory_order_relaxed);
  counters.runs.fetch_add(1, std::memory_order_relaxed);
  counters.hits.fetch_add(1, std::memory_order_relaxed);
  auto array_at = [&](size_t i) {
    return PySequence_Fast_GET_ITEM(arrays.ptr(), program->position[i]);
  };
  size_t index = 0;
  for (const OutSpec& out : signature.outs) {
    for (const TensorSpec& spec : out.tensors) {
      results.push_back(new_tensor(call.device, spec.sizes, spec.strides, spec.dtype));
      fill(results.back(), spec.geometry, call.device, array_at(index++), line);
    }
  }
  for (size_t i = 0; i < written.size(); ++i) {
    fill(*written[i], last.writes[i], call.device, array_at(index++), line);
  }
  if (program->device_time_ps > 0) {
    add_device_time(call.device, program->device_time_ps);
  }
  if (followed) {
    follow(trace, signature, values, results, written, line);
  }
  return true;
}

}  // namespace torchtpu
