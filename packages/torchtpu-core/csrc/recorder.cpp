// SPDX-License-Identifier: Apache-2.0
#include "recorder.h"

#include "allocator.h"
#include "deferred.h"
#include "device.h"
#include "generator.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/neg.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

namespace torchtpu {
namespace {

py::object& observer_object() {
  static auto* observer = new py::object(py::none());
  return *observer;
}
std::atomic<bool> observed{false};

// One op on its way into a trace.
class Recording {
 public:
  Recording(const Signature& signature, c10::DeviceIndex device) : device_(device) {
    node_.signature = &signature;
  }

  void add_input(const at::Tensor& tensor) {
    ValuePtr value = slot_of(tensor)->get();
    Plan plan = plan_view(value ? value->geometry : nullptr, tensor.sizes(), tensor.strides(),
                          tensor.storage_offset(), tensor.scalar_type());
    if (plan.kind == PlanKind::kUnset) {
      value = ValuePtr();
    }
    node_.inputs.push_back({std::move(value), std::move(plan)});
  }

  at::Tensor add_result(const TensorSpec& spec) {
    at::Tensor tensor = new_tensor(device_, spec.sizes, spec.strides, spec.dtype);
    auto value = c10::make_intrusive<Value>(spec.geometry, device_);
    NodeOutput output;
    output.value = value;
    output.sizes = spec.sizes;
    node_.outputs.push_back(std::move(output));
    slot_of(tensor)->exchange(std::move(value));
    return tensor;
  }

  void add_write(const at::Tensor& tensor) {
    Slot* slot = slot_of(tensor);
    NodeOutput output;
    output.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
    if (tensor.numel() == 0) {
      output.value = c10::make_intrusive<Value>(
          intern_geometry(tensor.sizes(), tensor.strides(), tensor.scalar_type()), device_);
      node_.outputs.push_back(std::move(output));
      return;
    }
    ValuePtr old = slot->get();
    if (covers(tensor, *slot)) {
      output.value = c10::make_intrusive<Value>(
          intern_geometry(tensor.sizes(), tensor.strides(), tensor.scalar_type()), device_);
    } else {
      output.is_update = true;
      auto itemsize = static_cast<int64_t>(tensor.element_size());
      const Geometry* base = old ? old->geometry
                                 : flat_geometry(static_cast<int64_t>(slot->nbytes()) / itemsize,
                                                 tensor.scalar_type());
      output.plan = plan_view(base, tensor.sizes(), tensor.strides(), tensor.storage_offset(),
                              tensor.scalar_type());
      output.value = c10::make_intrusive<Value>(base, device_);
      if (old) {
        output.base = static_cast<int>(node_.inputs.size());
        node_.inputs.push_back({old, Plan()});
      }
    }
    replaced_.emplace_back(slot, c10::weak_intrusive_ptr<Value>(old));
    slot->exchange(output.value);
    node_.outputs.push_back(std::move(output));
  }

  void add_scalars(c10::ArrayRef<ScalarWords> scalars) {
    node_.scalars.append(scalars.begin(), scalars.end());
  }
  void add_rng(const RngState& state) {
    node_.scalars.push_back(pack_bits(state.seed));
    node_.scalars.push_back(pack_bits(state.offset));
  }

  void commit() {
    if (nothing_to_do()) {
      return;
    }
    Trace& trace = device_trace(device_);
    std::unique_lock<std::recursive_mutex> lock(trace.mutex);
    capture_line();
    auto position = static_cast<uint32_t>(trace.nodes.size());
    for (size_t i = 0; i < node_.outputs.size(); ++i) {
      Value& value = *node_.outputs[i].value;
      value.node = position;
      value.output = static_cast<uint32_t>(i);
      value.line = node_.line;
      value.trace.store(&trace);
    }
    trace.nodes.push_back(std::move(node_));
    run_counters().ops.fetch_add(1);
    if (!mode_policy().flush_each.load(std::memory_order_relaxed)) {
      return;
    }
    try {
      flush(trace, "each op");
    } catch (...) {
      restore();
      trace.failed.clear();
      throw;
    }
  }

 private:
  static bool covers(const at::Tensor& tensor, const Slot& slot) {
    return tensor.storage_offset() == 0 &&
           tensor.numel() * static_cast<int64_t>(tensor.element_size()) ==
               static_cast<int64_t>(slot.nbytes()) &&
           is_dense(tensor.sizes(), tensor.strides());
  }

  // Only empty tensors are produced.
  bool nothing_to_do() const {
    for (const NodeOutput& output : node_.outputs) {
      if (output.value->geometry->numel != 0) {
        return false;
      }
    }
    return true;
  }

  void capture_line() {
    py::gil_scoped_acquire gil;
    node_.line = current_user_line();
  }

  // A failed op leaves the tensors it would have written as they were.
  void restore() {
    for (auto& [slot, weak] : replaced_) {
      ValuePtr old = weak.lock();
      if (!old || old->array.load() != nullptr) {
        slot->exchange(std::move(old));
      }
    }
  }

  c10::DeviceIndex device_;
  Node node_;
  c10::SmallVector<std::pair<Slot*, c10::weak_intrusive_ptr<Value>>, 2> replaced_;
};

void require_mode(const OpInfo& op) {
  ensure_started();
  if (!mode_policy().present.load(std::memory_order_relaxed) && !op.structural) {
    py::gil_scoped_acquire gil;
    bridge("raise_no_mode")(op.name);
  }
}

bool holds_mask_or_host_tensor(c10::ArrayRef<c10::IValue> args) {
  for (const c10::IValue& value : args) {
    if (!value.isList() || value.isIntList()) {
      continue;
    }
    for (const c10::IValue& item : value.toListRef()) {
      if (!item.isTensor() || !item.toTensor().defined()) {
        continue;
      }
      const at::Tensor& tensor = item.toTensor();
      if (tensor.device().type() != kTpu || tensor.scalar_type() == c10::kBool ||
          tensor.scalar_type() == c10::kByte) {
        return true;
      }
    }
  }
  return false;
}

// True if the op was replayed in another form; else it is to be recorded as it is.
bool run_prepared(const OpInfo& op, c10::ArrayRef<c10::IValue> args, torch::jit::Stack* stack) {
  py::gil_scoped_acquire gil;
  py::list python_args;
  for (const c10::IValue& value : args) {
    python_args.append(torch::jit::toPyObject(value));
  }
  py::object result = op.prepare(op.name, *python_args);
  if (result.is_none()) {
    return false;
  }
  torch::jit::drop(*stack, op.args.size());
  stack->push_back(torch::jit::toIValue(result, op.handle->schema().returns()[0].type()));
  return true;
}

void resize_outs(const OpInfo& op, c10::ArrayRef<at::Tensor> written, const Signature& signature) {
  for (size_t i = 0; i < written.size(); ++i) {
    const TensorSpec& spec = signature.written[i];
    if (written[i].sizes() != c10::IntArrayRef(spec.sizes)) {
      at::native::resize_output(written[i], spec.sizes);
      if (written[i].strides() != c10::IntArrayRef(spec.strides)) {
        written[i].as_strided_(spec.sizes, spec.strides);
      }
    }
    at::assert_no_internal_overlap(written[i]);
  }
}


// Pushes the op's returns: results in order, written arguments where the schema says so.
void push_returns(const OpInfo& op, const Signature& signature, c10::ArrayRef<at::Tensor> results,
                  torch::jit::Stack returned_args, torch::jit::Stack* stack) {
  size_t result = 0;
  size_t out = 0;
  for (size_t i = 0; i < op.returns_arg.size(); ++i) {
    if (op.returns_arg[i] >= 0) {
      stack->push_back(std::move(returned_args[i]));
      continue;
    }
    const OutSpec& spec = signature.outs[out++];
    if (spec.kind == OutSpec::kTensor) {
      stack->emplace_back(results[result++]);
    } else if (spec.kind == OutSpec::kUndefined) {
      stack->emplace_back(at::Tensor());
    } else if (spec.kind == OutSpec::kConstant) {
      stack->push_back(spec.constant);
    } else {
      c10::List<at::Tensor> list;
      for (size_t k = 0; k < spec.tensors.size(); ++k) {
        list.push_back(results[result++]);
      }
      stack->emplace_back(std::move(list));
    }
  }
}

// Some ops see tensors with the conjugate or negative bit set (PyTorch registers them
// as fallthrough: clone, copies); a value is read without the bit, so resolve it here.
void resolve_bits(torch::jit::Stack* stack, size_t count) {
  for (size_t i = stack->size() - count; i < stack->size(); ++i) {
    const c10::IValue& value = (*stack)[i];
    if (!value.isTensor() || !value.toTensor().defined() ||
        !(value.toTensor().is_conj() || value.toTensor().is_neg()) ||
        value.toTensor().device().type() != kTpu) {
      continue;
    }
    at::Tensor tensor = value.toTensor();
    if (tensor.is_conj()) {
      tensor = at::conj_physical(tensor.conj());  // conj() clears the bit, this computes
    }
    (*stack)[i] = tensor.is_neg() ? at::neg(tensor._neg_view()) : tensor;
  }
}

// Returns the device that runs the op, -1 if ops it is made of were recorded instead.
c10::DeviceIndex record_checked(const OpInfo& op, torch::jit::Stack* stack) {
  resolve_bits(stack, op.args.size());
  auto args = torch::jit::last(*stack, op.args.size());
  if (!op.prepare.is_none() && holds_mask_or_host_tensor(args) && run_prepared(op, args, stack)) {
    return -1;
  }
  Call call;
  canonicalise(op, args, call, nullptr);
  const Signature& signature = find_signature(op, args, call);
  c10::SmallVector<at::Tensor, 2> written;
  if (!op.written.empty()) {
    written = written_tensors(op, args);
    resize_outs(op, written, signature);
  }
  Recording recording(signature, call.device);
  for (const at::Tensor* tensor : call.tensors) {
    recording.add_input(*tensor);
  }
  recording.add_scalars(call.scalars);
  if (op.random) {
    auto generator = op.generator >= 0 ? args[op.generator].toOptional<at::Generator>()
                                       : std::optional<at::Generator>();
    recording.add_rng(next_state(generator, call.device));
  }
  c10::SmallVector<at::Tensor, 4> results;
  for (const OutSpec& out : signature.outs) {
    for (const TensorSpec& spec : out.tensors) {
      results.push_back(recording.add_result(spec));
    }
  }
  for (const at::Tensor& tensor : written) {
    recording.add_write(tensor);
  }
  recording.commit();
  torch::jit::Stack returned_args(op.returns_arg.size());
  for (size_t i = 0; i < op.returns_arg.size(); ++i) {
    if (op.returns_arg[i] >= 0) {
      returned_args[i] = args[op.returns_arg[i]];
    }
  }
  torch::jit::drop(*stack, op.args.size());
  push_returns(op, signature, results, std::move(returned_args), stack);
  return call.device;
}

// A meta kernel or a lowering refused the call: lets CPU PyTorch word the mistake.
void reword(const OpInfo& op, torch::jit::Stack* stack, const py::object& error) {
  py::list args;
  for (const c10::IValue& value : torch::jit::last(*stack, op.args.size())) {
    args.append(torch::jit::toPyObject(value));
  }
  bridge("raise_cpus_error")(op.name, args, error);
}

void record_now(const OpInfo& op, torch::jit::Stack* stack) {
  c10::DeviceIndex device = -1;
  try {
    device = record_checked(op, stack);
  } catch (const py::error_already_set& error) {
    py::gil_scoped_acquire gil;
    reword(op, stack, error.value());
    throw;
  } catch (python_error& error) {
    py::gil_scoped_acquire gil;
    error.persist();
    reword(op, stack, py::none());
    throw;
  } catch (const c10::Error&) {
    py::gil_scoped_acquire gil;
    reword(op, stack, py::none());
    throw;
  }
  if (device >= 0 && mode_policy().synchronous.load(std::memory_order_relaxed)) {
    synchronize(device);
  }
}

// While the observer runs: the ops it calls are its own business.
thread_local bool observing = false;

template <typename Function>
py::object unobserved(const Function& function) {
  struct Scope {
    Scope() { observing = true; }
    ~Scope() { observing = false; }
  } scope;
  return function();
}

// Runs `record` between the observer's calls; `results` lists what it made. The GIL is held.
template <typename Record, typename Results>
void observe(const std::string& name, const py::list& args, const Record& record,
             const Results& results) {
  py::object observer = observer_object();
  py::object token = unobserved([&] { return observer.attr("before")(name, args); });
  try {
    py::gil_scoped_release release;
    record();
  } catch (py::error_already_set& error) {
    unobserved([&] { return observer.attr("failed")(token, error.value()); });
    throw;
  }
  unobserved([&] { return observer.attr("after")(token, results()); });
}

void record_observed(const OpInfo& op, torch::jit::Stack* stack) {
  py::gil_scoped_acquire gil;
  py::list args;
  for (const c10::IValue& value : torch::jit::last(*stack, op.args.size())) {
    args.append(torch::jit::toPyObject(value));
  }
  observe(op.name, args, [&] { record_now(op, stack); }, [&] {
    py::list results;
    for (const c10::IValue& value : torch::jit::last(*stack, op.returns_arg.size())) {
      results.append(torch::jit::toPyObject(value));
    }
    return results;
  });
}

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

ModePolicy& mode_policy() {
  static auto* policy = new ModePolicy();
  return *policy;
}

void set_observer(py::object observer) {
  observed.store(!observer.is_none());
  observer_object() = std::move(observer);
}

at::Tensor new_tensor(c10::DeviceIndex device, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                      c10::ScalarType dtype) {
  size_t nbytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), nbytes, new_data_ptr(device, nbytes), device_allocator(),
      /*resizable=*/true);
  auto tensor = at::detail::make_tensor_base<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(kTpuDispatchKey), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return at::Tensor(std::move(tensor));
}

void record_op(const OpInfo& op, const c10::OperatorHandle& /*handle*/, torch::jit::Stack* stack) {
  require_mode(op);
  if (observed.load(std::memory_order_relaxed) && !observing) {
    record_observed(op, stack);
  } else {
    record_now(op, stack);
  }
}

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
  if (observed.load(std::memory_order_relaxed) && !observing) {
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
