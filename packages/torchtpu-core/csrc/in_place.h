// SPDX-License-Identifier: Apache-2.0
// Kernels with C++ signatures for in-place ops.
//
// A boxed kernel gets copies of its tensors. To copy a tensor that only Python holds, PyTorch takes
// the GIL to keep the Python object alive, and again to let go: a third of what recording `add_`
// costs. These kernels lend the tensors instead.
#pragma once

#include "op_info.h"

#include <torch/library.h>

#include <optional>

namespace torchtpu {

// The kernel of an op that writes and gives back its first argument, if its signature is one of the
// usual ones. Takes the info if so.
std::optional<torch::CppFunction> in_place_kernel(std::unique_ptr<OpInfo>& info);

}  // namespace torchtpu
