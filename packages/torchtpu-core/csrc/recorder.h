// SPDX-License-Identifier: Apache-2.0
// The boxed kernel of every op that has a lowering, and the same for Python functions.
#pragma once

#include "op_info.h"
#include "signature.h"
#include "trace.h"

namespace torchtpu {

constexpr c10::DispatchKey kTpuDispatchKey = c10::DispatchKey::PrivateUse1;

// When recorded ops run. Set by the execution mode's plugin.
struct ModePolicy {
  std::atomic<bool> present{false};     // without a mode only structural ops run
  std::atomic<bool> flush_each{true};   // after every op
  std::atomic<bool> synchronous{false}; // and wait for it
};
ModePolicy& mode_policy();

// An object with before(name, args) -> token, after(token, results) and
// failed(token, error), called around every op (Debug); None: nobody watches. Ops that
// it calls itself are not observed. The GIL is held.
void set_observer(py::object observer);

void record_op(const OpInfo& op, const c10::OperatorHandle& handle, torch::jit::Stack* stack);

// Runs `row`, a Python function on arrays, on tensors: the way of compiled graphs and
// custom kernels. `out_specs(tensors)` is called for a new signature and gives
// [(sizes, strides, dtype)]. `written` are indices of tensors that are replaced; their
// new values follow the results. The GIL is held.
std::vector<at::Tensor> record_call(const OpInfo& op, const std::vector<at::Tensor>& tensors,
                                    const std::vector<py::object>& scalars,
                                    const std::vector<int>& written, const py::object& out_specs);

// A tensor of the device over new storage, nothing written.
at::Tensor new_tensor(c10::DeviceIndex device, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                      c10::ScalarType dtype);

}  // namespace torchtpu
