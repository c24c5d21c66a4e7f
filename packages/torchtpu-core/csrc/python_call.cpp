// SPDX-License-Identifier: Apache-2.0
// Calls of Python functions on arrays, recorded like ops.
#include "device.h"
#include "recorder.h"

#include <torch/csrc/utils/pybind.h>

namespace torchtpu {
namespace {

void read_call(const OpInfo& op, const std::vector<at::Tensor>& tensors,
               const std::vector<py::object>& scalars, Call& call) {
  call.key.append({-1, op.uid});
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK(tensor.device().type() == kTpu, "Expected a tensor on device tpu, but it is on ",
                tensor.device(), " (argument of ", op.name, "). Move it with .to('tpu').");
    TORCH_CHECK(call.device < 0 || call.device == tensor.device().index(),
                "Expected all tensors to be on the same device, but found at least two devices, tpu:",
                static_cast<int>(call.device), " and ", tensor.device(), "! (", op.name, ")");
    call.device = tensor.device().index();
    call.key.append({static_cast<int64_t>(tensor.scalar_type()), tensor.dim()});
    call.key.append(tensor.sizes().begin(), tensor.sizes().end());
    call.key.append(tensor.strides().begin(), tensor.strides().end());
    call.tensors.push_back(&tensor);
  }
  for (const py::object& scalar : scalars) {
    bool is_float = py::isinstance<py::float_>(scalar);
    call.key.push_back(is_float ? -2 : -3);
    call.scalars.push_back(is_float ? pack_double(scalar.cast<double>())
                                    : pack_int(scalar.cast<int64_t>()));
  }
  if (call.device < 0) {
    call.device = current_device();
  }
}

void fill_call_signature(const OpInfo& op, const Call& call, const std::vector<int>& written,
                         const py::object& out_specs, Signature& signature) {
  static auto* arrays_arg = new OpArg{"arrays", ArgRole::kValue, false, false, false, false, {}};
  static auto* scalars_arg = new OpArg{"scalars", ArgRole::kValue, false, true, false, false, {}};
  signature.op = &op;
  ArgSpec arrays;
  arrays.arg = arrays_arg;
  arrays.kind = ArgSpec::kTensorList;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const at::Tensor& tensor = *call.tensors[i];
    arrays.index.push_back(static_cast<int>(i));
    TensorSpec spec;
    spec.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
    spec.strides.assign(tensor.strides().begin(), tensor.strides().end());
    spec.dtype = tensor.scalar_type();
    signature.inputs.push_back(spec);
  }
  signature.args.push_back(std::move(arrays));
  for (size_t i = 0; i < call.scalars.size(); ++i) {
    ArgSpec scalar;
    scalar.arg = scalars_arg;
    scalar.kind = ArgSpec::kScalar;
    scalar.scalar_kinds = call.key[call.key.size() - call.scalars.size() + i] == -2 ? "f" : "i";
    scalar.index.push_back(static_cast<int>(i));
    signature.args.push_back(std::move(scalar));
  }
  for (auto item : out_specs().cast<py::list>()) {
    auto triple = item.cast<py::tuple>();
    OutSpec out;
    TensorSpec spec;
    for (int64_t size : triple[0].cast<std::vector<int64_t>>()) {
      spec.sizes.push_back(size);
    }
    for (int64_t stride : triple[1].cast<std::vector<int64_t>>()) {
      spec.strides.push_back(stride);
    }
    spec.dtype = py::cast<c10::ScalarType>(triple[2]);
    spec.geometry = intern_geometry(spec.sizes, spec.strides, spec.dtype);
    out.tensors.push_back(std::move(spec));
    signature.outs.push_back(std::move(out));
  }
  for (int index : written) {
    signature.written.push_back(signature.inputs[index]);
  }
}

// The tensors of a Python function's results; without the GIL.
std::vector<at::Tensor> record_python_call(const OpInfo& op, const Signature& signature,
                                           const Call& call, const std::vector<int>& written) {
  std::vector<at::Tensor> results;
  Recording recording(signature, call.device);
  for (const at::Tensor* tensor : call.tensors) {
    recording.add_input(*tensor);
  }
  recording.add_scalars(call.scalars);
  if (op.random) {
    recording.add_rng(next_state(std::nullopt, call.device, op.random_draws));
  }
  for (const OutSpec& out : signature.outs) {
    results.push_back(recording.add_result(out.tensors[0]));
  }
  for (int index : written) {
    recording.add_write(*call.tensors[index]);
  }
  recording.commit();
  if (mode_policy().synchronous.load(std::memory_order_relaxed)) {
    synchronize(call.device);
  }
  return results;
}

}  // namespace

std::vector<at::Tensor> record_call(const OpInfo& op, const std::vector<at::Tensor>& tensors,
                                    const std::vector<py::object>& scalars,
                                    const std::vector<int>& written, const py::object& out_specs) {
  require_mode(op);
  Call call;
  read_call(op, tensors, scalars, call);
  bool added = false;
  Signature* signature = find_or_add_signature(call.key, &added);
  if (added || signature->op == nullptr) {
    fill_call_signature(op, call, written, out_specs, *signature);
  }
  std::vector<at::Tensor> results;
  auto record = [&] { results = record_python_call(op, *signature, call, written); };
  if (is_observed()) {
    py::list args;
    for (const at::Tensor& tensor : tensors) {
      args.append(tensor);
    }
    observe(op.name, args, record, [&] { return py::cast(results); });
  } else {
    py::gil_scoped_release release;
    record();
  }
  return results;
}

}  // namespace torchtpu
