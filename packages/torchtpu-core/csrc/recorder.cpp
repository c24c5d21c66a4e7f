// SPDX-License-Identifier: Apache-2.0
#include "recorder.h"

#include "allocator.h"
#include "deferred.h"
#include "device.h"
#include "generator.h"
#include "printing.h"
#include "rerun.h"
#include "restless.h"
#include "shared_elements.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/neg.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

namespace torchtpu {
namespace {

// While it lives, torch.jit.trace does not see what the runtime asks Python: sizes would be
// tensors there. The call itself is traced above.
class WithoutJitTracing {
 public:
  WithoutJitTracing()
      : state_(torch::jit::tracer::getTracingState()),
        excluded_(c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Tracer)) {
    set(nullptr);
  }
  ~WithoutJitTracing() { set(std::move(state_)); }
  WithoutJitTracing(const WithoutJitTracing&) = delete;
  WithoutJitTracing& operator=(const WithoutJitTracing&) = delete;

 private:
  void set(std::shared_ptr<torch::jit::tracer::TracingState> state) const {
    c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::Tracer, false);
    torch::jit::tracer::setTracingState(std::move(state));
    c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::Tracer, excluded_);
  }

  std::shared_ptr<torch::jit::tracer::TracingState> state_;
  bool excluded_;
};

// torch.jit.trace does not record `convolution`, but the `_convolution` that PyTorch's kernel of
// it calls: calls that.
bool call_as_traced(const OpInfo& op, torch::jit::Stack* stack) {
  if (op.name != "aten::convolution") {
    return false;
  }
  static const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_convolution", "");
  bool benchmark = false, deterministic = false, cudnn_enabled = true, allow_tf32 = true;
  torch::jit::push(*stack, benchmark, deterministic, cudnn_enabled, allow_tf32);
  handle.callBoxed(stack);
  return true;
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

bool needs_preparing(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  if (op.prepare.is_none()) {
    return false;
  }
  return op.prepare_if < 0 ? holds_mask_or_host_tensor(args)
                           : args[static_cast<size_t>(op.prepare_if)].toBool();
}

// True if the op was replayed in another form; else it is to be recorded as it is.
bool run_prepared(const OpInfo& op, py::handle prepare, c10::ArrayRef<c10::IValue> args,
                  torch::jit::Stack* stack) {
  py::gil_scoped_acquire gil;
  py::list python_args;
  for (const c10::IValue& value : args) {
    python_args.append(torch::jit::toPyObject(value));
  }
  py::object result = prepare(op.name, *python_args);
  if (result.is_none()) {
    return false;
  }
  torch::jit::drop(*stack, op.args.size());
  stack->push_back(torch::jit::toIValue(result, op.handle->schema().returns()[0].type()));
  return true;
}

// Whether its out= is the only tensor that an op takes, as of torch.full.
bool is_factory(const OpInfo& op) {
  const auto& arguments = op.handle->schema().arguments();
  return std::none_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
    return !argument.is_out() && argument.type()->str().find("Tensor") != std::string::npos;
  });
}

// With CPU's warnings: its factories resize without one, but for arange, which has its own.
void resize_out(const OpInfo& op, const at::Tensor& out, c10::IntArrayRef sizes) {
  if (!is_factory(op)) {
    at::native::resize_output(out, sizes);
    return;
  }
  if (op.name.rfind("aten::arange.", 0) == 0 && out.numel() > 0) {
    TORCH_WARN("The number of elements in the out tensor of shape ", out.sizes(), " is ", out.numel(),
               " which does not match the computed number of elements ", sizes[0],
               ". Note that this may occur as a result of rounding error. The out tensor will be "
               "resized to a tensor of shape (", sizes[0], ",).");
  }
  out.resize_(sizes);
}

void resize_outs(const OpInfo& op, c10::ArrayRef<const at::Tensor*> written,
                 const Signature& signature) {
  for (size_t i = 0; i < written.size(); ++i) {
    const at::Tensor& out = *written[i];
    const TensorSpec& spec = signature.written[i];
    if (out.sizes() != c10::IntArrayRef(spec.sizes)) {
      resize_out(op, out, spec.sizes);
      if (out.strides() != c10::IntArrayRef(spec.strides)) {
        out.as_strided_(spec.sizes, spec.strides);
      }
    }
    if (op.sharing != Sharing::kRepeats) {
      at::assert_no_internal_overlap(out);
    }
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
bool needs_resolving(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() &&
         (value.toTensor().is_conj() || value.toTensor().is_neg()) &&
         value.toTensor().device().type() == kTpu;
}

void resolve_bits(torch::jit::Stack* stack, size_t count) {
  for (size_t i = stack->size() - count; i < stack->size(); ++i) {
    const c10::IValue& value = (*stack)[i];
    if (!needs_resolving(value)) {
      continue;
    }
    at::Tensor tensor = value.toTensor();
    if (tensor.is_conj()) {
      tensor = at::conj_physical(tensor.conj());  // conj() clears the bit, this computes
    }
    (*stack)[i] = tensor.is_neg() ? at::neg(tensor._neg_view()) : tensor;
  }
}

// Adds the op to its device's trace.
void add_to_trace(const OpInfo& op, const Signature& signature, const Call& call,
                  c10::ArrayRef<c10::IValue> args, c10::ArrayRef<const at::Tensor*> written,
                  Results& results) {
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
  for (const OutSpec& out : signature.outs) {
    for (const TensorSpec& spec : out.tensors) {
      results.push_back(recording.add_result(spec));
    }
  }
  for (const at::Tensor* tensor : written) {
    recording.add_write(*tensor);
  }
  recording.commit();
}

// What recording a call gave.
struct Recorded {
  c10::DeviceIndex device = -1;  // that runs it
  const Signature* signature = nullptr;
  Results results;
};

// Records an op as it is.
Recorded record_as_is(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  Call call;
  canonicalise(op, args, call, nullptr);
  const Signature& signature = find_signature(op, args, call);
  WrittenTensors written;
  if (!op.written.empty()) {
    written = written_tensors(op, args);
    if (op.sharing != Sharing::kAny && op.sharing != Sharing::kRepeats) {
      check_sharing(op.sharing, written, call.tensors);
    }
    if (op.sharing == Sharing::kApart) {
      at::assert_no_internal_overlap(*written[0]);
    }
    resize_outs(op, written, signature);
    if (op.sharing == Sharing::kApart || op.sharing == Sharing::kNothing) {  // has it grown?
      check_sharing(op.sharing, written, call.tensors);
    }
  }
  Recorded recorded{call.device, &signature, {}};
  if (!run_again(signature, call, written, recorded.results)) {
    add_to_trace(op, signature, call, args, written, recorded.results);
  }
  return recorded;
}

// Replaces the arguments by the returns; gives the device that runs the op, -1 if ops it is made
// of were recorded instead.
c10::DeviceIndex record_boxed(const OpInfo& op, torch::jit::Stack* stack) {
  resolve_bits(stack, op.args.size());
  auto args = torch::jit::last(*stack, op.args.size());
  if (needs_preparing(op, args) && run_prepared(op, op.prepare, args, stack)) {
    return -1;
  }
  if (!op.expanded.is_none() && writes_expanded(op, args) &&
      run_prepared(op, op.expanded, args, stack)) {
    return -1;
  }
  if (writes_elements_twice(op, args)) {
    op.handle->callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, *stack);
    return -1;
  }
  if (take_list_apart(op, stack)) {
    return -1;
  }
  Recorded recorded = record_as_is(op, args);
  torch::jit::Stack returned_args(op.written.empty() ? 0 : op.returns_arg.size());
  for (size_t i = 0; i < returned_args.size(); ++i) {
    if (op.returns_arg[i] >= 0) {
      returned_args[i] = args[op.returns_arg[i]];
    }
  }
  torch::jit::drop(*stack, op.args.size());
  push_returns(op, *recorded.signature, recorded.results, std::move(returned_args), stack);
  return recorded.device;
}

// A meta kernel or a lowering refused the call: lets CPU PyTorch word the mistake.
void reword(const OpInfo& op, c10::ArrayRef<c10::IValue> values, const py::object& error) {
  py::list args;
  for (const c10::IValue& value : values) {
    args.append(torch::jit::toPyObject(value));
  }
  bridge("raise_cpus_error")(op.name, args, error);
}

// Runs `record`, which gives the device that runs the op; `args()` are its arguments, for errors.
template <class Record, class Args>
void record_now(const OpInfo& op, const Record& record, const Args& args) {
  c10::DeviceIndex device = -1;
  try {
    device = record();
  } catch (const py::error_already_set& error) {
    py::gil_scoped_acquire gil;
    if (may_refuse(error.type().ptr()) && !bridge("is_host_only")(error.value()).cast<bool>()) {
      reword(op, args(), error.value());
    }
    throw;
  } catch (python_error& error) {
    py::gil_scoped_acquire gil;
    error.persist();
    if (may_refuse(error.type)) {
      reword(op, args(), py::none());
    }
    throw;
  } catch (const c10::Error&) {
    py::gil_scoped_acquire gil;
    reword(op, args(), py::none());
    throw;
  }
  if (device >= 0 && mode_policy().synchronous.load(std::memory_order_relaxed)) {
    synchronize(device);
  }
}

// Runs `record`; false if a TPU's compiler does not take the op with such operands.
template <class Record, class Args>
bool record_unless_host_only(const OpInfo& op, const Record& record, const Args& args) {
  try {
    record_now(op, record, args);
    return true;
  } catch (const py::error_already_set& error) {
    py::gil_scoped_acquire gil;
    if (!bridge("is_host_only")(error.value()).cast<bool>()) {
      throw;
    }
  }
  return false;
}

void record_stack(const OpInfo& op, torch::jit::Stack* stack) {
  auto record = [&] { return record_boxed(op, stack); };
  auto args = [&] {
    return c10::ArrayRef<c10::IValue>(torch::jit::last(*stack, op.args.size()));
  };
  if (!record_unless_host_only(op, record, args)) {
    run_on_host(*op.handle, stack);
  }
}

void record_observed(const OpInfo& op, torch::jit::Stack* stack) {
  py::gil_scoped_acquire gil;
  py::list args;
  for (const c10::IValue& value : torch::jit::last(*stack, op.args.size())) {
    args.append(torch::jit::toPyObject(value));
  }
  observe(op.name, args, [&] { record_stack(op, stack); }, [&] {
    py::list results;
    for (const c10::IValue& value : torch::jit::last(*stack, op.returns_arg.size())) {
      results.append(torch::jit::toPyObject(value));
    }
    return results;
  });
}

}  // namespace

void record_op(const OpInfo& op, const c10::OperatorHandle& /*handle*/, torch::jit::Stack* stack) {
  if (run_to_print(op, stack)) {
    return;
  }
  require_mode(op);
  std::optional<WithoutJitTracing> untraced;
  if (torch::jit::tracer::isTracing()) {
    if (call_as_traced(op, stack)) {
      return;
    }
    untraced.emplace();
  }
  if (is_observed()) {
    record_observed(op, stack);
  } else {
    record_stack(op, stack);
  }
}

std::optional<Results> record_lent(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  if (torch::jit::tracer::isTracing() || is_observed() || is_printing() ||
      std::any_of(args.begin(), args.end(), needs_resolving) || needs_preparing(op, args) ||
      (!op.expanded.is_none() && writes_expanded(op, args))) {
    return std::nullopt;
  }
  require_mode(op);
  Recorded recorded;
  auto record = [&] {
    recorded = record_as_is(op, args);
    return recorded.device;
  };
  if (!record_unless_host_only(op, record, [&] { return args; })) {
    return std::nullopt;
  }
  return std::move(recorded.results);
}

}  // namespace torchtpu
