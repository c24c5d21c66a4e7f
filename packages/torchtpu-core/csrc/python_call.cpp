// SPDX-License-Identifier: Apache-2.0
// Calls of Python functions on arrays, recorded like ops.
#include "device.h"
#include "recorder.h"
#include "rerun.h"

#include <torch/csrc/autograd/python_variable.h>

#include <torch/csrc/utils/pybind.h>

#include <algorithm>

namespace torchtpu {
namespace {

using Tensors = c10::ArrayRef<at::Tensor>;

void read_call(const OpInfo& op, Tensors tensors, c10::ArrayRef<py::object> scalars, Call& call) {
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
void record_python_call(const OpInfo& op, const Signature& signature, const Call& call,
                        c10::ArrayRef<const at::Tensor*> written, Results& results) {
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
  for (const at::Tensor* tensor : written) {
    recording.add_write(*tensor);
  }
  recording.commit();
}

bool has_bits(const at::Tensor& tensor) { return tensor.is_conj() || tensor.is_neg(); }

Results call_python(const OpInfo& op, Tensors tensors, c10::ArrayRef<py::object> scalars,
                    const std::vector<int>& written, const py::object& out_specs);

// The call where tensors have the conjugate or negative bit: a value is read and written
// without, so it works on copies, and what it writes is copied back.
Results call_without_bits(const OpInfo& op, Tensors tensors, c10::ArrayRef<py::object> scalars,
                          const std::vector<int>& written, const py::object& out_specs) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::SmallVector<at::Tensor, 8> plain;
  {
    py::gil_scoped_release release;
    for (const at::Tensor& tensor : tensors) {
      plain.push_back(tensor.resolve_conj().resolve_neg());
    }
  }
  Results results = call_python(op, plain, scalars, written, out_specs);
  py::gil_scoped_release release;
  for (int index : written) {
    if (has_bits(tensors[index])) {
      tensors[index].copy_(plain[index]);
    }
  }
  return results;
}

Results call_python(const OpInfo& op, Tensors tensors, c10::ArrayRef<py::object> scalars,
                    const std::vector<int>& written, const py::object& out_specs) {
  if (std::any_of(tensors.begin(), tensors.end(), has_bits)) {
    return call_without_bits(op, tensors, scalars, written, out_specs);
  }
  require_mode(op);
  Call call;
  read_call(op, tensors, scalars, call);
  bool added = false;
  Signature* signature = find_or_add_signature(call.key, &added);
  if (added || signature->op == nullptr) {
    fill_call_signature(op, call, written, out_specs, *signature);
  }
  WrittenTensors changed;
  for (int index : written) {
    changed.push_back(call.tensors[index]);
  }
  Results results;
  auto record = [&] {
    if (!run_again(*signature, call, changed, results)) {
      record_python_call(op, *signature, call, changed, results);
    }
    if (mode_policy().synchronous.load(std::memory_order_relaxed)) {
      synchronize(call.device);
    }
  };
  if (is_observed()) {
    py::list args;
    for (const at::Tensor& tensor : tensors) {
      args.append(tensor);
    }
    observe(op.name, args, record, [&] {
      return py::cast(std::vector<at::Tensor>(results.begin(), results.end()));
    });
  } else {
    py::gil_scoped_release release;
    record();
  }
  return results;
}

const at::Tensor& tensor_at(const py::handle& argument) {
  TORCH_CHECK_TYPE(THPVariable_Check(argument.ptr()), "Expected a tensor, but got ",
                   Py_TYPE(argument.ptr())->tp_name, ".");
  return THPVariable_Unpack(argument.ptr());
}

// What a bound call returns besides results: arguments, kept from before it runs.
py::list prepared_returns(const BoundCall& bound, c10::ArrayRef<PyObject*> arguments) {
  py::list returned(bound.returns.size());
  for (size_t i = 0; i < bound.returns.size(); ++i) {
    int source = bound.returns[i];
    if (source >= 0) {
      continue;
    }
    PyObject* item = source == BoundCall::kNothing ? Py_None : arguments[~source];
    PyList_SET_ITEM(returned.ptr(), static_cast<Py_ssize_t>(i), Py_NewRef(item));
  }
  return returned;
}

py::list run_bound(const BoundCall& bound, Tensors tensors, py::list returned) {
  Results results = call_python(*bound.op, tensors, {}, bound.written, bound.out_specs);
  for (size_t i = 0; i < bound.returns.size(); ++i) {
    if (bound.returns[i] >= 0) {
      PyList_SET_ITEM(returned.ptr(), static_cast<Py_ssize_t>(i),
                      THPVariable_Wrap(results[bound.returns[i]]));
    }
  }
  return returned;
}

c10::SmallVector<at::Tensor, 8> operands_of(const BoundCall& bound,
                                            c10::ArrayRef<PyObject*> arguments) {
  c10::SmallVector<at::Tensor, 8> tensors;
  for (int position : bound.operands) {
    TORCH_CHECK(static_cast<size_t>(position) < arguments.size(), bound.op->name,
                ": expected more than ", arguments.size(), " arguments.");
    tensors.push_back(tensor_at(arguments[position]));
  }
  return tensors;
}

// The operands of a call that failed, for whoever asks which of its parts it was.
void give_back(py::list& arguments, Py_ssize_t count, const std::vector<int>& positions, Tensors tensors) {
  for (Py_ssize_t i = PyList_GET_SIZE(arguments.ptr()); i < count; ++i) {
    arguments.append(py::none());
  }
  for (size_t i = 0; i < positions.size(); ++i) {
    arguments[positions[i]] = py::reinterpret_steal<py::object>(THPVariable_Wrap(tensors[i]));
  }
}

}  // namespace

std::vector<at::Tensor> record_call(const OpInfo& op, const std::vector<at::Tensor>& tensors,
                                    const std::vector<py::object>& scalars,
                                    const std::vector<int>& written, const py::object& out_specs) {
  Results results = call_python(op, tensors, scalars, written, out_specs);
  return {results.begin(), results.end()};
}

py::list BoundCall::call(const py::args& arguments) const {
  c10::ArrayRef<PyObject*> items(&PyTuple_GET_ITEM(arguments.ptr(), 0), arguments.size());
  auto tensors = operands_of(*this, items);
  return run_bound(*this, tensors, prepared_returns(*this, items));
}

py::list BoundCall::call_boxed(py::list arguments) const {
  c10::ArrayRef<PyObject*> items(PySequence_Fast_ITEMS(arguments.ptr()), arguments.size());
  auto tensors = operands_of(*this, items);
  py::list returned = prepared_returns(*this, items);
  PyList_SetSlice(arguments.ptr(), 0, PyList_GET_SIZE(arguments.ptr()), nullptr);
  try {
    return run_bound(*this, tensors, std::move(returned));
  } catch (...) {
    give_back(arguments, static_cast<Py_ssize_t>(items.size()), operands, tensors);
    throw;
  }
}

}  // namespace torchtpu
