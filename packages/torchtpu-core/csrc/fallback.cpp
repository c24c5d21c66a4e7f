// SPDX-License-Identifier: Apache-2.0
// Ops without a lowering run on the host: visibly, counted, refusable. Layouts the device does not
// have are refused.
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

void refuse_layout(const c10::OperatorHandle& op, torch::jit::Stack* /*stack*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op.schema().name(), ": sparse and quantized tensors do not exist on device 'tpu', which "
      "holds dense (strided) ones. Keep the tensor on the CPU, or make it dense there first: "
      "x.to_dense() or x.dequantize(), then .to('tpu').");
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}
TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_layout>());
}
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_layout>());
}
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_layout>());
}

}  // namespace
}  // namespace torchtpu
