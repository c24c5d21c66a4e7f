// SPDX-License-Identifier: Apache-2.0
#include "printing.h"

#include "device.h"
#include "python_frames.h"

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <atomic>
#include <iterator>

namespace torchtpu {
namespace {

// Tensors up to this many elements are copied for it: PyTorch shows a thousand, and converts 16-bit
// ones before it chooses them.
constexpr int64_t kMostElements = 1 << 16;

// The string that names the file of all code of that module. Not a static of a function: whoever
// waits for one may hold the GIL.
std::atomic<PyObject*> printing_file{nullptr};

bool is_small(const at::Tensor& tensor) {
  return !tensor.defined() || (tensor.layout() == c10::kStrided && tensor.numel() <= kMostElements);
}

bool is_taken(const c10::IValue& value) {
  if (value.isTensor()) {
    return is_small(value.toTensor());
  }
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) {
      if (!is_small(tensor)) {
        return false;
      }
    }
  }
  return !value.isDevice();
}

c10::IValue on_host(const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().defined()) {
    return value.toTensor().to(c10::kCPU);
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorList()) {
      list.push_back(tensor.to(c10::kCPU));
    }
    return list;
  }
  return value;
}

}  // namespace

bool is_printing() {
  if (c10::GradMode::is_enabled()) {  // is off there
    return false;
  }
  PyObject* file = printing_file.load(std::memory_order_acquire);
  if (file == nullptr) {
    py::gil_scoped_acquire gil;
    py::object code = py::module_::import("torch._tensor_str").attr("_str_intern").attr("__code__");
    file = py::object(code.attr("co_filename")).release().ptr();
    printing_file.store(file, std::memory_order_release);
  }
  return innermost_code_is([](PyCodeObject* code) {
    return code->co_filename == printing_file.load(std::memory_order_relaxed);
  });
}

bool is_printed(const at::Tensor& tensor) { return is_small(tensor) && is_printing(); }

bool run_to_print(const OpInfo& op, torch::jit::Stack* stack) {
  thread_local bool is_copying = false;
  if (is_copying || !op.written.empty() || !is_printing()) {
    return false;
  }
  size_t count = op.args.size();
  auto args = torch::jit::last(*stack, count);
  if (!std::all_of(args.begin(), args.end(), is_taken)) {
    return false;
  }
  is_copying = true;
  torch::jit::Stack values;
  try {
    std::transform(args.begin(), args.end(), std::back_inserter(values), on_host);
  } catch (...) {
    is_copying = false;
    throw;
  }
  is_copying = false;
  torch::jit::drop(*stack, count);
  op.handle->callBoxed(&values);
  stack->insert(stack->end(), values.begin(), values.end());
  return true;
}

}  // namespace torchtpu
