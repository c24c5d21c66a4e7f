// SPDX-License-Identifier: Apache-2.0
// The memory behind a tensor, where the device's memory is host memory (XLA's CPU client).
#pragma once

#include "bridge.h"
#include "native.h"

namespace torchtpu {

// See Native::memory. The GIL is held; nothing is recorded for the tensor's device.
Memory memory_of(const at::Tensor& tensor, bool write, const Owner* held);

// The array whose memory `memory_of(tensor, true, nullptr)` gives if that is all of it, or None.
py::object own_array(const at::Tensor& tensor);

// For the capsule that other distributions open.
py::capsule native_table();

}  // namespace torchtpu
