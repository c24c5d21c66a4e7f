// SPDX-License-Identifier: Apache-2.0
// Ops without a lowering run on the host: visibly, counted, refusable.
#include "device.h"
#include "recorder.h"

#include <ATen/native/CPUFallback.h>
#include <torch/library.h>

namespace torchtpu {
namespace {

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  bool had_started = is_started();
  ensure_started();
  if (!had_started && op.hasKernelForDispatchKey(kTpuDispatchKey)) {
    op.callBoxed(stack);  // the first op of the process: its kernel exists only now
    return;
  }
  {
    py::gil_scoped_acquire gil;
    std::string name = op.schema().name();
    if (!op.schema().overload_name().empty()) {
      name += "." + op.schema().overload_name();
    }
    bridge("on_fallback")(name, current_user_line().describe());
  }
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace
}  // namespace torchtpu
