// SPDX-License-Identifier: Apache-2.0
// The boxed kernel of every op that has a lowering, and the same for Python functions.
#pragma once

#include "mode.h"
#include "op_info.h"
#include "recording.h"
#include "signature.h"
#include "trace.h"

namespace torchtpu {

void record_op(const OpInfo& op, const c10::OperatorHandle& handle, torch::jit::Stack* stack);

// Runs `row`, a Python function on arrays, on tensors: the way of compiled graphs and
// custom kernels. `out_specs(tensors)` is called for a new signature and gives
// [(sizes, strides, dtype)]. `written` are indices of tensors that are replaced; their
// new values follow the results. The GIL is held.
std::vector<at::Tensor> record_call(const OpInfo& op, const std::vector<at::Tensor>& tensors,
                                    const std::vector<py::object>& scalars,
                                    const std::vector<int>& written, const py::object& out_specs);

}  // namespace torchtpu
