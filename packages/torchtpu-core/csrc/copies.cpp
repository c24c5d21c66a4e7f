// SPDX-License-Identifier: Apache-2.0
#include "copies.h"

#include "allocator.h"
#include "deferred.h"
#include "device.h"
#include "known_numbers.h"
#include "printing.h"
#include "recorder.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/neg.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

namespace torchtpu {
namespace {

OpInfo*& copy_op() {
  static OpInfo* op = nullptr;
  return op;
}

void copy_within_device(const at::Tensor& from, const at::Tensor& to) {
  torch::jit::Stack stack{to, from, false};
  record_op(*copy_op(), *copy_op()->handle, &stack);
}

bool covers_storage(const at::Tensor& tensor) {
  const Slot& slot = *slot_of(tensor);
  return offset_in_slot(tensor, slot) == 0 && tensor.numel() > 0 &&
         tensor.nbytes() == slot.nbytes() && is_dense(tensor.sizes(), tensor.strides());
}

// Gives `to` the contents of an array of its shape and dtype.
void assign(const at::Tensor& to, py::object array) {
  if (covers_storage(to)) {
    auto value = c10::make_intrusive<Value>(
        intern_geometry(to.sizes(), to.strides(), to.scalar_type()), to.device().index());
    value->line = current_user_line();
    value->home = slot_of(to);
    value->set_array(array.release().ptr());
    note_launch(*value);
    slot_of(to)->exchange(std::move(value));
    return;
  }
  at::Tensor whole = tensor_of(std::move(array), to.device().index(), to.sizes(), to.scalar_type());
  py::gil_scoped_release release;
  copy_within_device(whole, to);
}

void host_to_device(const at::Tensor& from, const at::Tensor& to) {
  at::Tensor source = from.to(to.scalar_type()).expand(to.sizes()).contiguous().resolve_conj().resolve_neg();
  if (source.requires_grad()) {
    source = source.detach();
  }
  py::gil_scoped_acquire gil;
  drop_dead_references();
  make_room(to.device().index(), static_cast<int64_t>(source.nbytes()));
  assign(to, bridge("to_device")(source, static_cast<int>(to.device().index())));
}

void device_to_host(const at::Tensor& from, const at::Tensor& to) {
  py::object keep_alive;
  at::Tensor source = host_view(from, keep_alive);
  to.copy_(source);
  py::gil_scoped_acquire gil;
  source.reset();
  keep_alive = py::object();
}

void device_to_device(const at::Tensor& from, const at::Tensor& to) {
  at::Tensor source = from.expand(to.sizes());
  if (from.device().index() == to.device().index()) {
    copy_within_device(source, to);
    return;
  }
  at::Tensor staged = source;
  if (source.scalar_type() != to.scalar_type()) {
    staged = source.to(to.scalar_type());
  }
  py::gil_scoped_acquire gil;
  make_room(to.device().index(), static_cast<int64_t>(staged.nbytes()));
  assign(to, bridge("to_other_device")(array_of(staged), static_cast<int>(to.device().index())));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool /*non_blocking*/) {
  ensure_started();
  if (to.numel() == 0) {
    return to;
  }
  at::assert_no_internal_overlap(to);
  at::assert_no_partial_overlap(to, from);
  if (to.device().type() != kTpu) {
    device_to_host(from, to);
  } else if (to.is_conj()) {  // conj(raw) = from means raw = conj(from)
    copy_from(from.conj(), to.conj(), false);
  } else if (to.is_neg()) {
    copy_from(from.is_neg() ? from._neg_view() : at::neg(from), to._neg_view(), false);
  } else if (from.device().type() != kTpu) {
    host_to_device(from, to);
  } else if (from.is_conj()) {
    device_to_device(at::conj_physical(from.conj()), to);  // conj() clears the bit
  } else if (from.is_neg()) {
    device_to_device(at::neg(from._neg_view()), to);
  } else if (is_printed(from)) {
    host_to_device(from.to(c10::kCPU), to);
  } else {
    device_to_device(from, to);
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) {
    to.resize_(from.sizes());
  }
  return copy_from(from, to, false);
}

at::Scalar local_scalar_dense(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.numel() > 0, "Cannot take the item of an empty tensor.");
  const Question question(tensor);
  if (auto known = question.answer()) {
    return *known;
  }
  at::Tensor host = at::empty({}, tensor.options().device(c10::kCPU));
  copy_from(tensor.reshape({}), host, false);
  at::Scalar number = host.item();
  question.note(number);
  return number;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &local_scalar_dense);
}

}  // namespace

void set_copy_op(std::unique_ptr<OpInfo> info) { copy_op() = info.release(); }

at::Tensor host_view(const at::Tensor& tensor, py::object& keep_alive) {
  ensure_started();
  auto options = tensor.options().device(c10::kCPU).requires_grad(false);
  Slot& slot = *slot_of(tensor);
  ValuePtr value = slot.get();
  if (!value || tensor.numel() == 0) {
    require_contents(tensor, slot);
    return at::empty_strided(tensor.sizes(), tensor.strides(), options).zero_();
  }
  if (Trace* producer = value->trace.load()) {
    flush(*producer, FlushReason::kHostRead);
  } else {
    note_host_read(*value);
  }
  raise_deferred(tensor.device().index());
  const Geometry& geometry = *value->geometry;
  void* address = nullptr;
  {
    py::gil_scoped_acquire gil;
    drop_dead_references();
    py::object array = concrete_array(value);
    try {
      auto pair = bridge("host_buffer")(array).cast<py::tuple>();
      address = reinterpret_cast<void*>(pair[0].cast<uintptr_t>());
      keep_alive = pair[1];
    } catch (py::error_already_set& error) {
      rethrow_at(error, value->line);
    }
  }
  at::Tensor base = at::from_blob(address, geometry.sizes, options.dtype(geometry.dtype));
  at::Tensor seen = base;
  if (geometry.sizes != Dims(tensor.sizes().begin(), tensor.sizes().end()) ||
      c10::IntArrayRef(geometry.strides) != tensor.strides() || geometry.dtype != tensor.scalar_type()) {
    if (!geometry.row_major) {
      base = at::empty_strided(geometry.sizes, geometry.strides, base.options()).copy_(base);
    }
    at::Tensor flat = base.as_strided({geometry.numel}, {1}, 0);
    if (geometry.dtype != tensor.scalar_type()) {
      flat = flat.is_complex() ? at::from_blob(flat.data_ptr(),
                                               {geometry.nbytes / static_cast<int64_t>(tensor.element_size())},
                                               options).clone()
                               : flat.view(tensor.scalar_type());
    }
    seen = flat.as_strided(tensor.sizes(), tensor.strides(), offset_in_slot(tensor, slot));
  }
  return tensor.is_neg() ? seen._neg_view() : tensor.is_conj() ? seen.conj() : seen;
}

py::object array_of(const at::Tensor& tensor, bool lend) {
  ensure_started();
  at::Tensor whole = tensor;
  const Slot& slot = *slot_of(tensor);
  ValuePtr value = slot_of(tensor)->get();
  bool identity = value && value->geometry->row_major &&
                  plan_view(value->geometry, tensor.sizes(), tensor.strides(), offset_in_slot(tensor, slot),
                            tensor.scalar_type()).kind == PlanKind::kIdentity;
  if (!identity || tensor.is_conj() || tensor.is_neg()) {
    py::gil_scoped_release release;
    whole = at::empty(tensor.sizes(), tensor.options().requires_grad(false));
    whole.copy_(tensor.detach());
    value = slot_of(whole)->get();
  }
  if (!value) {
    return bridge("zeros")(tensor.sizes().vec(), py::cast(tensor.scalar_type()),
                           static_cast<int>(tensor.device().index()));
  }
  py::object array = concrete_array(value);
  value->lent |= lend;
  return array;
}

at::Tensor tensor_of(py::object array, c10::DeviceIndex device, c10::IntArrayRef sizes,
                     c10::ScalarType dtype) {
  Dims strides(sizes.size());
  int64_t stride = 1;
  for (int dim = static_cast<int>(sizes.size()) - 1; dim >= 0; --dim) {
    strides[dim] = stride;
    stride *= std::max<int64_t>(sizes[dim], 1);
  }
  at::Tensor tensor = new_tensor(device, sizes, strides, dtype);
  if (tensor.numel() > 0) {
    auto value = c10::make_intrusive<Value>(intern_geometry(sizes, strides, dtype), device);
    value->line = current_user_line();
    value->set_array(array.release().ptr());
    note_launch(*value);
    slot_of(tensor)->exchange(std::move(value));
  }
  return tensor;
}

void assign_array(const at::Tensor& to, py::object array) {
  ensure_started();
  if (to.numel() == 0) {
    return;
  }
  drop_dead_references();
  assign(to, std::move(array));
}

}  // namespace torchtpu
