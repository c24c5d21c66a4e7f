// SPDX-License-Identifier: Apache-2.0
#include "memory_of.h"

#include "allocator.h"
#include "copies.h"
#include "deferred.h"
#include "device.h"
#include "known_numbers.h"
#include "trace.h"

#include <torch/csrc/utils/pybind.h>

namespace torchtpu {
namespace {

py::object ask(PyObject* array, const char* method) {
  PyObject* answer = PyObject_CallMethod(array, method, nullptr);
  if (answer == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(answer);
}

int64_t first_byte(const at::Tensor& tensor) {
  return offset_in_slot(tensor, *slot_of(tensor)) * static_cast<int64_t>(tensor.itemsize());
}

// The value of the tensor's storage if the tensor's elements lie in it in order, in a row.
ValuePtr value_in_order(const at::Tensor& tensor) {
  ValuePtr value = slot_of(tensor)->get();
  bool good = value && value->trace.load() == nullptr && value->array.load() != nullptr &&
              value->geometry->row_major && value->geometry->dtype == tensor.scalar_type() &&
              !tensor.is_conj() && !tensor.is_neg() && tensor.is_contiguous() &&
              first_byte(tensor) + static_cast<int64_t>(tensor.nbytes()) <= value->geometry->nbytes;
  return good ? value : ValuePtr();
}

// Whether only the tensor's storage, `value` itself and `held` can see its memory.
bool is_own(const ValuePtr& value, const Owner* held) {
  PyObject* array = value->array.load();
  size_t holders = value.get() == held ? 3 : 2;
  return !value->lent && value.use_count() == holders && array != nullptr && Py_REFCNT(array) == 1;
}

// Gives a tensor nobody has written to, over all of its storage, memory of its own.
void provide(const at::Tensor& tensor) {
  Slot& slot = *slot_of(tensor);
  if (!slot.get() && tensor.nbytes() == slot.nbytes() && tensor.is_contiguous()) {
    make_room(tensor.device().index(), static_cast<int64_t>(tensor.nbytes()));
    assign_array(tensor, bridge("zeros")(tensor.sizes().vec(), py::cast(tensor.scalar_type()),
                                         static_cast<int>(tensor.device().index())));
  }
}

// The value, computed, if its memory may be read or, with `write`, changed.
ValuePtr usable_value(const at::Tensor& tensor, bool write, const Owner* held) {
  if (write) {
    provide(tensor);
  }
  ValuePtr value = value_in_order(tensor);
  if (!value || (write && !is_own(value, held))) {
    return ValuePtr();
  }
  auto array = py::reinterpret_borrow<py::object>(value->array.load());
  if (!ask(array.ptr(), "is_ready").cast<bool>()) {
    bridge("wait")(array);
  }
  array = py::object();
  // A program under way may read what was computed long ago, so all of them have to be over;
  // the wait let other threads in, so look again.
  bool good = !write || (is_settled(tensor.device().index()) && is_own(value, held));
  if (good && write) {
    may_change(*value);
  }
  return good && value->array.load() != nullptr ? value : ValuePtr();
}

void flush_pending(c10::DeviceIndex device) {
  py::gil_scoped_release no_gil;
  flush_device(device, FlushReason::kCompiledGraph);
}

void synchronize_device(c10::DeviceIndex device) {
  py::gil_scoped_release no_gil;
  synchronize(device);
}

void set_written(Owner& owner, bool written) {
  auto& value = static_cast<Value&>(owner);
  written ? ++value.written : --value.written;
}

const Native the_table{Native::kVersion,    &current_line_text, &flush_pending, &memory_of,
                       &synchronize_device, &add_device_time,   &set_written};

}  // namespace

Memory memory_of(const at::Tensor& tensor, bool write, const Owner* held) {
  ValuePtr value = usable_value(tensor, write, held);
  if (!value) {
    return {};
  }
  auto address = ask(value->array.load(), "unsafe_buffer_pointer").cast<uintptr_t>();
  return {reinterpret_cast<char*>(address) + first_byte(tensor), std::move(value)};
}

py::object own_array(const at::Tensor& tensor) {
  flush_pending(tensor.device().index());
  ValuePtr value = usable_value(tensor, true, nullptr);
  bool whole = value && value->geometry->nbytes == static_cast<int64_t>(tensor.nbytes());
  return whole ? py::reinterpret_borrow<py::object>(value->array.load()) : py::object(py::none());
}

py::capsule native_table() { return py::capsule(&the_table, Native::kName); }

}  // namespace torchtpu
