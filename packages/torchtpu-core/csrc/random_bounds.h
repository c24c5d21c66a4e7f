// SPDX-License-Identifier: Apache-2.0
// Bounds of `random_` and `uniform_`: operands of a program, so they are checked at every call.
#pragma once

#include "op_info.h"

namespace torchtpu {

// Raises, or warns, as CPU does for bounds that are reversed or that the dtype cannot hold.
void check_random_bounds(const OpInfo& op, c10::ArrayRef<c10::IValue> args);

}  // namespace torchtpu
