// SPDX-License-Identifier: Apache-2.0
// Ops without a lowering run on the host: visibly, counted, refusable. Quantized tensors, which the
// device does not have, are refused.
#include "device.h"
#include "recorder.h"

#include <ATen/native/CPUFallback.h>
#include <torch/library.h>

namespace torchtpu {
namespace {

void report(const c10::OperatorHandle& op) {
  py::gil_scoped_acquire gil;
  std::string name = op.schema().name();
  if (!op.schema().overload_name().empty()) {
    name += "." + op.schema().overload_name();
  }
  bridge("on_fallback")(name, current_user_line().describe());
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  bool had_started = is_started();
  ensure_started();
  if (!had_started && op.hasKernelForDispatchKey(kTpuDispatchKey)) {
    op.callBoxed(stack);  // the first op of the process: its kernel exists only now
    return;
  }
  run_on_host(op, stack);
}

// A value with its tensors, or devices, on `device`.
c10::IValue moved(const c10::IValue& value, c10::Device device) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return tensor.defined() && !tensor.unsafeGetTensorImpl()->is_wrapped_number() ? tensor.to(device)
                                                                                  : tensor;
  }
  if (value.isDevice()) {
    return device;
  }
  if (value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList()) {
    c10::List<c10::IValue> list = value.toList().copy();
    for (size_t i = 0; i < list.size(); ++i) {
      list.set(i, moved(list.get(i), device));
    }
    return list;
  }
  return value;
}

c10::Device device_of(const torch::jit::Stack& arguments) {
  for (const c10::IValue& value : arguments) {
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().device().type() == kTpu) {
      return value.toTensor().device();
    }
  }
  return c10::Device(kTpu, current_device());
}

// PyTorch's fallback redispatches to the dense kernels of the CPU; this one lets the dispatcher
// choose by the layouts of the operands.
void sparse_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  ensure_started();
  report(op);
  const c10::FunctionSchema& schema = op.schema();
  torch::jit::Stack given = torch::jit::pop(*stack, schema.arguments().size());
  c10::Device device = device_of(given);
  torch::jit::Stack on_host;
  for (const c10::IValue& value : given) {
    on_host.push_back(moved(value, c10::Device(c10::kCPU)));
  }
  torch::jit::Stack results = on_host;
  op.callBoxed(&results);
  for (size_t i = 0; i < given.size(); ++i) {
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite() && given[i].isTensor()) {
      at::Tensor written = on_host[i].toTensor();
      at::Tensor target = given[i].toTensor();
      if (target.layout() == c10::kStrided && target.sizes() != written.sizes()) {
        target.resize_(written.sizes());
      }
      target.copy_(written.to(device));
    }
  }
  for (size_t r = 0; r < results.size(); ++r) {
    const c10::AliasInfo* alias = schema.returns()[r].alias_info();
    if (alias == nullptr || !alias->isWrite()) {
      stack->push_back(moved(results[r], device));
      continue;
    }
    for (size_t i = 0; i < given.size(); ++i) {
      if (on_host[i].isTensor() && on_host[i].toTensor().is_same(results[r].toTensor())) {
        stack->push_back(given[i]);
        break;
      }
    }
  }
}

void refuse_layout(const c10::OperatorHandle& op, torch::jit::Stack* /*stack*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op.schema().name(), ": quantized tensors do not exist on device 'tpu'. Keep the tensor "
      "on the CPU, or make it float there first: x.dequantize(), then .to('tpu').");
}

}  // namespace

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  report(op);
  at::native::cpu_fallback(op, stack);
}

namespace {

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}
TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&sparse_fallback>());
}
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&sparse_fallback>());
}
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_layout>());
}

}  // namespace
}  // namespace torchtpu
