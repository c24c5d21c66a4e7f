// SPDX-License-Identifier: Apache-2.0
// Kernels with C++ signatures for the usual ops.
//
// A boxed kernel gets copies of its tensors. To copy a tensor that only Python holds, PyTorch takes
// the GIL to keep the Python object alive, and again to let go: a sixth of what recording `add_`
// costs. These kernels lend the tensors instead.
#pragma once

#include "op_info.h"

#include <torch/library.h>

#include <optional>

namespace torchtpu {

// The kernel of an op of tensors and numbers that returns one tensor, a new one or its first
// argument written. Takes the info; does neither if the signature is not one of the usual ones.
std::optional<torch::CppFunction> lending_kernel(std::unique_ptr<OpInfo>& info);

}  // namespace torchtpu
