// SPDX-License-Identifier: Apache-2.0
// Which writes of an op meet elements that it writes or reads elsewhere, as CPU's kernels ask before
// they run.
#pragma once

#include "op_info.h"

#include <ATen/core/Tensor.h>

namespace torchtpu {

// Whether the op writes a tensor with elements that are one in memory, such as an expanded one.
bool writes_expanded(const OpInfo& op, c10::ArrayRef<c10::IValue> args);

// Whether two tensors of a list that the op writes may share elements: a `_foreach_` op then has to
// take them one by one, as PyTorch's own kernel for any device does.
bool writes_elements_twice(const OpInfo& op, c10::ArrayRef<c10::IValue> args);

// Refuses what CPU's kernels refuse: a written tensor that shares memory with an operand.
void check_sharing(Sharing allowed, c10::ArrayRef<const at::Tensor*> written,
                   c10::ArrayRef<const at::Tensor*> operands);

}  // namespace torchtpu
