// SPDX-License-Identifier: Apache-2.0
// What a mask chooses of a tensor (`x[mask]`), while nobody has asked how many elements that are.
//
// Such a tensor holds the whole of `x` and the mask. Elementwise ops compute on the whole, and a
// write through the same mask (`x[mask] *= 2`) selects from it: no step stops to count. Whatever
// asks for a size or for the storage gets what `index` gives, and from then on it is a tensor like
// any other.
#pragma once

#include "op_info.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace torchtpu {

// `x[:, ..., mask]`, with `axis` dimensions of x before those of the mask; nothing if the mode
// runs each op at once, or autograd or something else needs to see the sizes now. The mask fits.
std::optional<at::Tensor> choose_later(const at::Tensor& x, const at::Tensor& mask, int64_t axis);

// Records a call of an op that has such tensors among its arguments on what they hold, and replaces
// the arguments by the returns. False: there is none, or the op needs to know their sizes, which
// they have now.
bool record_on_chosen(const OpInfo& op, torch::jit::Stack* stack);

// Whether an argument is such a tensor.
bool has_chosen(c10::ArrayRef<c10::IValue> args);

}  // namespace torchtpu
