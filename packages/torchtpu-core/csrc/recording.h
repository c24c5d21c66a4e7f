// SPDX-License-Identifier: Apache-2.0
// One op on its way into a trace: its operands, results and writes.
#pragma once

#include "allocator.h"
#include "device.h"
#include "generator.h"
#include "mode.h"
#include "recomputation.h"
#include "trace.h"

#include <ATen/core/Tensor.h>

namespace torchtpu {

// A tensor of the device over new storage, nothing written.
at::Tensor new_tensor(c10::DeviceIndex device, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                      c10::ScalarType dtype);

// Whether a tensor fills its storage.
inline bool covers(const at::Tensor& tensor, const Slot& slot) {
  return offset_in_slot(tensor, slot) == 0 &&
         tensor.numel() * static_cast<int64_t>(tensor.element_size()) ==
             static_cast<int64_t>(slot.nbytes()) &&
         is_dense(tensor.sizes(), tensor.strides());
}

inline bool lies_as(const at::Tensor& tensor, const Geometry& geometry) {
  return geometry.dtype == tensor.scalar_type() &&
         c10::IntArrayRef(geometry.sizes) == tensor.sizes() &&
         c10::IntArrayRef(geometry.strides) == tensor.strides();
}

// The geometry of a tensor that fills its storage; usually that of what it replaces.
inline const Geometry* geometry_of(const at::Tensor& tensor, const ValuePtr& old) {
  return old && lies_as(tensor, *old->geometry)
             ? old->geometry
             : intern_geometry(tensor.sizes(), tensor.strides(), tensor.scalar_type());
}

// One op on its way into a trace.
class Recording {
 public:
  Recording(const Signature& signature, c10::DeviceIndex device) : device_(device) {
    node_.signature = &signature;
  }

  void add_input(const at::Tensor& tensor) {
    Slot* slot = slot_of(tensor);
    ValuePtr value = slot->get();
    Plan plan = plan_view(value ? value->geometry : nullptr, tensor.sizes(), tensor.strides(),
                          offset_in_slot(tensor, *slot), tensor.scalar_type());
    if (plan.kind == PlanKind::kUnset) {
      require_contents(tensor, *slot);
      value = ValuePtr();
    }
    node_.inputs.push_back({std::move(value), std::move(plan), false});
  }

  at::Tensor add_result(const TensorSpec& spec) {
    at::Tensor tensor = new_tensor(device_, spec.sizes, spec.strides, spec.dtype);
    auto value = c10::make_intrusive<Value>(spec.geometry, device_);
    NodeOutput output;
    output.value = value;
    node_.outputs.push_back(std::move(output));
    Slot* slot = slot_of(tensor);
    value->home = slot;
    slot->exchange(std::move(value));
    return tensor;
  }

  void add_write(const at::Tensor& tensor) {
    Slot* slot = slot_of(tensor);
    NodeOutput output;
    if (tensor.numel() == 0) {
      output.value = c10::make_intrusive<Value>(
          intern_geometry(tensor.sizes(), tensor.strides(), tensor.scalar_type()), device_);
      node_.outputs.push_back(std::move(output));
      return;
    }
    ValuePtr old = slot->get();
    if (covers(tensor, *slot)) {
      output.value = c10::make_intrusive<Value>(geometry_of(tensor, old), device_);
    } else {
      output.is_update = true;
      auto itemsize = static_cast<int64_t>(tensor.element_size());
      const Geometry* base = old ? old->geometry
                                 : flat_geometry(static_cast<int64_t>(slot->nbytes()) / itemsize,
                                                 tensor.scalar_type());
      output.plan = plan_view(base, tensor.sizes(), tensor.strides(),
                              offset_in_slot(tensor, *slot), tensor.scalar_type());
      output.value = c10::make_intrusive<Value>(base, device_);
      if (int earlier = own_output(old); earlier >= 0) {
        output.base = kOwnOutput - earlier;
        output.replaces = node_.outputs[earlier].replaces;
      } else if (old) {
        output.base = static_cast<int>(node_.inputs.size());
        node_.inputs.push_back({old, Plan(), true});
      }
    }
    for (size_t i = 0; old && i < node_.inputs.size(); ++i) {
      if (node_.inputs[i].value == old) {
        node_.inputs[i].replaced = true;
        output.replaces = static_cast<int>(i);
      }
    }
    output.value->home = slot;
    replaced_.emplace_back(slot, c10::weak_intrusive_ptr<Value>(old));
    slot->exchange(output.value);
    node_.outputs.push_back(std::move(output));
  }

  void add_scalars(c10::ArrayRef<ScalarWords> scalars) {
    node_.scalars.append(scalars.begin(), scalars.end());
  }
  void add_rng(const RngState& state) {
    node_.scalars.push_back(pack_bits(state.seed));
    node_.scalars.push_back(pack_bits(state.offset));
  }

  void commit() {
    if (nothing_to_do()) {
      return;
    }
    Trace& trace = device_trace(device_);
    TraceLock lock(trace);
    node_.line = current_user_line();
    node_.in_backward = in_backward();
    node_.recomputed = is_recomputation();
    try {
      append(trace, std::move(node_));
    } catch (...) {
      if (trace.failed.size() == 1) {  // this op, alone
        restore();
      }
      trace.failed.clear();
      throw;
    }
  }

 private:
  // Which output of this op a value is, or -1: an op may write several views of one storage.
  int own_output(const ValuePtr& value) const {
    for (size_t i = 0; i < node_.outputs.size(); ++i) {
      if (value && node_.outputs[i].value == value) {
        return static_cast<int>(i);
      }
    }
    return -1;
  }

  // Only empty tensors are produced.
  bool nothing_to_do() const {
    for (const NodeOutput& output : node_.outputs) {
      if (output.value->geometry->numel != 0) {
        return false;
      }
    }
    return true;
  }

  // A failed op leaves the tensors it would have written as they were.
  void restore() {
    for (auto& [slot, weak] : replaced_) {
      ValuePtr old = weak.lock();
      if (!old || old->array.load() != nullptr) {
        slot->exchange(std::move(old));
      }
    }
  }

  c10::DeviceIndex device_;
  Node node_;
  c10::SmallVector<std::pair<Slot*, c10::weak_intrusive_ptr<Value>>, 2> replaced_;
};

}  // namespace torchtpu
