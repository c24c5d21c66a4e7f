// SPDX-License-Identifier: Apache-2.0
// Transfers between the host, the device and other devices.
#pragma once

#include "op_info.h"
#include "value.h"

#include <ATen/core/Tensor.h>

namespace torchtpu {

// The op that copies within a device: aten::copy_ with its row. Set at start.
void set_copy_op(std::unique_ptr<OpInfo> info);

// A host tensor with the contents of `tensor`; may share the device's memory, so it
// is for reading only. `keep_alive` must outlive it. Raises deferred errors first.
at::Tensor host_view(const at::Tensor& tensor, py::object& keep_alive);

// The value of `tensor` as one array in the tensor's own shape. The GIL is held. Unless `lend`,
// nobody reads its memory once the caller has dropped it.
py::object array_of(const at::Tensor& tensor, bool lend = true);

// A tensor around an array that nobody else will modify. The GIL is held.
at::Tensor tensor_of(py::object array, c10::DeviceIndex device, c10::IntArrayRef sizes,
                     c10::ScalarType dtype);

// Gives `to` the contents of an array of its shape and dtype that nobody else will
// modify; no copy if `to` covers its storage. The GIL is held.
void assign_array(const at::Tensor& to, py::object array);

}  // namespace torchtpu
