// SPDX-License-Identifier: Apache-2.0
// PyTorch's meta kernels in C++ of structured operators.
//
// torch registers Python's over them at the Meta key, of which a call of new sizes takes half a
// millisecond to record, not 7 us. These are what CPU's kernels begin with. They let through
// dtypes that those refuse afterwards, so Python's are asked once for each combination of them.
#pragma once

#include "op_info.h"

#include <ATen/core/stack.h>

#include <string>

namespace torchtpu {

// The kernel of an overload, such as "aten::add.Tensor"; null if it has none here.
const c10::KernelFunction* native_meta(const std::string& overload);

// Whether such a kernel gives a call what the CPU's gives, so that Python need not be asked.
bool has_plain_meta(const OpInfo& op, c10::ArrayRef<c10::IValue> args);

// Calls the meta kernel of an op on `stack`, which has meta tensors in place of those of `args`:
// the one in C++ where Python's has accepted such a call before.
void call_meta(const OpInfo& op, c10::ArrayRef<c10::IValue> args, torch::jit::Stack& stack);

}  // namespace torchtpu
