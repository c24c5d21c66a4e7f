// SPDX-License-Identifier: Apache-2.0
// The boxed kernel of every op that has a lowering, and the same for Python functions.
#pragma once

#include "mode.h"
#include "op_info.h"
#include "recording.h"
#include "rerun.h"
#include "signature.h"
#include "trace.h"

#include <limits>
#include <optional>

namespace torchtpu {

void record_op(const OpInfo& op, const c10::OperatorHandle& handle, torch::jit::Stack* stack);

// Records an op that writes its first argument or returns one new tensor, which is the result;
// nothing if it is to be called with a stack. Does not copy the arguments.
std::optional<Results> record_lent(const OpInfo& op, c10::ArrayRef<c10::IValue> args);

// Runs an op on the CPU, on copies of its operands; says so.
void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Runs `row`, a Python function on arrays, on tensors: the way of compiled graphs and
// custom kernels. `out_specs(tensors)` is called for a new signature and gives
// [(sizes, strides, dtype)]. `written` are indices of tensors that are replaced; their
// new values follow the results. The GIL is held.
std::vector<at::Tensor> record_call(const OpInfo& op, const std::vector<at::Tensor>& tensors,
                                    const std::vector<py::object>& scalars,
                                    const std::vector<int>& written, const py::object& out_specs);

// A call of the same kind whose operands and results have fixed places.
struct BoundCall {
  const OpInfo* op;
  std::vector<int> operands;  // positions among the arguments
  std::vector<int> written;   // indices in `operands`
  py::object out_specs;
  std::vector<int> returns;   // a result; ~i: argument i as it is; kNothing: None

  static constexpr int kNothing = std::numeric_limits<int>::min();

  // The arguments as a tuple.
  py::list call(const py::args& arguments) const;
  // The arguments as a list, which is emptied before the call runs.
  py::list call_boxed(py::list arguments) const;
};

}  // namespace torchtpu
