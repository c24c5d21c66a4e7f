// SPDX-License-Identifier: Apache-2.0
// Numbers that the dtype of a call cannot hold.
#pragma once

#include "op_info.h"

namespace torchtpu {

// What an argument has to fit, by the option "fits" of its operator.
Fit fit_of(const py::dict& options, const std::string& argument);

// Throws PyTorch's error where a number of a call does not fit the dtype that it is converted to,
// as 300 does not fit uint8 and 1e9 does not fit float16: XLA would take what is left of it.
void require_fit(const OpInfo& op, c10::ArrayRef<c10::IValue> args);

}  // namespace torchtpu
