// SPDX-License-Identifier: Apache-2.0
// Printing a tensor computes on the host.
#pragma once

#include "op_info.h"

#include <ATen/core/stack.h>

namespace torchtpu {

// Whether the calling thread is in PyTorch's module that makes text of tensors.
bool is_printing();

// Whether it is making text of this tensor, or one of its parts, which is small enough to be copied.
bool is_printed(const at::Tensor& tensor);

// Runs an op on the host and leaves its results there, if it is one by which PyTorch finds out how
// to print a tensor: how wide its numbers are, and which of many are shown. These are a dozen tiny
// ops whose shapes change with the values, each of which would be a program of its own, and what
// they give is read at once. PyTorch copies tensors of XLA's older devices before it prints them;
// for ours it computes. False if the op is to run on the device.
bool run_to_print(const OpInfo& op, torch::jit::Stack* stack);

}  // namespace torchtpu
