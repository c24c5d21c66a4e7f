// SPDX-License-Identifier: Apache-2.0
#include "signature.h"

#include "device.h"
#include "mixed.h"
#include "native_metas.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace torchtpu {
namespace {

struct Signatures {
  std::mutex mutex;
  std::unordered_multimap<uint64_t, std::unique_ptr<Signature>> table;
};

Signatures& signatures() {
  static auto* the_signatures = new Signatures();
  return *the_signatures;
}

// The last signatures this thread met, by hash: no lock, no chain.
constexpr size_t kRecent = 1024;
thread_local std::array<Signature*, kRecent> recent{};

bool is_of(const Signature* signature, c10::ArrayRef<int64_t> key, uint64_t hash) {
  return signature != nullptr && signature->hash == hash &&
         c10::ArrayRef<int64_t>(signature->key) == key;
}

Signature* lookup(c10::ArrayRef<int64_t> key, uint64_t hash) {
  auto range = signatures().table.equal_range(hash);
  for (auto it = range.first; it != range.second; ++it) {
    if (c10::ArrayRef<int64_t>(it->second->key) == key) {
      return it->second.get();
    }
  }
  return nullptr;
}

at::Tensor to_meta(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().type() != kTpu) {
    return tensor;
  }
  return at::Tensor(
      at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type()));
}

c10::IValue to_meta(const c10::IValue& value) {
  if (value.isTensor()) {
    return to_meta(value.toTensor());
  }
  if (value.isDevice()) {
    return c10::IValue(c10::Device(c10::DeviceType::Meta));
  }
  if (value.isGenerator()) {
    return {};
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(to_meta(tensor));
    }
    return list;
  }
  if (value.isList() && value.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& item : value.toListRef()) {
      list.push_back(item.isNone() ? std::optional<at::Tensor>() : to_meta(item.toTensor()));
    }
    return list;
  }
  return value;
}

TensorSpec view_spec(const at::Tensor& tensor) {
  TensorSpec spec;
  spec.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  spec.strides.assign(tensor.strides().begin(), tensor.strides().end());
  spec.dtype = tensor.scalar_type();
  return spec;
}

TensorSpec spec_of(const at::Tensor& tensor) {
  // Not a TypeError: Python's operators would hide it behind "unsupported operand type(s)".
  TORCH_CHECK(tensor.scalar_type() != c10::kComplexHalf,
              "The result would be complex32, a dtype that does not exist on device 'tpu': "
              "convert the float16 operand to float32 first.");
  TensorSpec spec = view_spec(tensor);
  if (!is_dense(spec.sizes, spec.strides)) {  // overlapping outputs are never returned fresh
    int64_t stride = 1;
    for (int dim = static_cast<int>(spec.sizes.size()) - 1; dim >= 0; --dim) {
      spec.strides[dim] = stride;
      stride *= std::max<int64_t>(spec.sizes[dim], 1);
    }
  }
  spec.geometry = intern_geometry(spec.sizes, spec.strides, spec.dtype);
  return spec;
}

OutSpec out_spec(const c10::IValue& value) {
  OutSpec out;
  if (value.isTensor()) {
    if (value.toTensor().defined()) {
      out.tensors.push_back(spec_of(value.toTensor()));
    } else {
      out.kind = OutSpec::kUndefined;
    }
  } else if (value.isTensorList()) {
    out.kind = OutSpec::kList;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      out.tensors.push_back(spec_of(tensor));
    }
  } else {
    out.kind = OutSpec::kConstant;
    out.constant = value;
  }
  return out;
}

void add_written(const OpInfo& op, c10::ArrayRef<c10::IValue> args, Signature& signature) {
  for (const at::Tensor* tensor : written_tensors(op, args)) {
    signature.written.push_back(view_spec(*tensor));  // a strided view is written where it lies
  }
}

// Fills take their value from a 0-d tensor of any device; PyTorch's meta kernels want it on meta.
bool is_fill(const OpInfo& op) {
  return op.name.rfind("aten::masked_fill", 0) == 0 || op.name.rfind("aten::index_fill", 0) == 0;
}

// These write their numbers to an out= of as many elements in order, whatever its shape.
bool keeps_shape_of_out(const OpInfo& op) {
  static const auto* names = new std::unordered_set<std::string>{
      "aten::arange", "aten::linspace", "aten::logspace", "aten::range"};
  return op.only_out && names->count(op.name.substr(0, op.name.find('.'))) != 0;
}

bool has_out(const OpInfo& op) {
  return std::any_of(op.args.begin(), op.args.end(),
                     [](const OpArg& arg) { return arg.role == ArgRole::kOut; });
}

// While it lives, warnings of PyTorch's C++ and Python kernels are dropped: the meta kernel of an
// out= overload resizes a stand-in, and the user hears of it when their own tensor is resized.
class WithoutWarnings {
 public:
  WithoutWarnings() : guard_(&handler_) {
    py::gil_scoped_acquire gil;
    filters_ = py::module_::import("warnings").attr("catch_warnings")().release();
    filters_.attr("__enter__")();
    py::module_::import("warnings").attr("simplefilter")("ignore");
  }
  ~WithoutWarnings() {
    py::gil_scoped_acquire gil;
    py::error_scope kept;  // of what the kernel raised
    filters_.attr("__exit__")(py::none(), py::none(), py::none());
    filters_.dec_ref();
  }

 private:
  struct Handler final : c10::WarningHandler {
    void process(const c10::Warning& /*warning*/) override {}
  };
  Handler handler_;
  c10::WarningUtils::WarningHandlerGuard guard_;
  py::handle filters_;
};

// Meta kernels of backward ops state results that nobody asked for; lowerings leave them out.
void drop_unwanted(const OpInfo& op, c10::ArrayRef<c10::IValue> args, torch::jit::Stack& results) {
  if (op.output_mask < 0) {
    return;
  }
  c10::List<bool> wanted = args[op.output_mask].toBoolList();
  for (size_t i = 0; i < wanted.size() && i < results.size(); ++i) {
    if (!wanted[i] && op.returns_arg[i] < 0) {
      results[i] = at::Tensor();
    }
  }
}

py::list python_args(c10::ArrayRef<c10::IValue> args) {
  py::list list;
  for (const c10::IValue& value : args) {
    list.append(torch::jit::toPyObject(value));
  }
  return list;
}

// Whether CPU PyTorch takes a call that its meta kernel refused.
bool cpu_takes(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  py::gil_scoped_acquire gil;
  return bridge("cpu_takes")(op.name, python_args(args)).cast<bool>();
}

// Runs the meta kernel; false if there is none, or if it refuses what CPU PyTorch takes.
bool call_meta_kernel(const OpInfo& op, c10::ArrayRef<c10::IValue> args, torch::jit::Stack& stack) {
  try {
    call_meta(op, args, stack);
    return true;
  } catch (const c10::NotImplementedError&) {
    return false;
  } catch (python_error& error) {
    error.persist();
    if (!may_refuse(error.type) || !cpu_takes(op, args)) {
      throw;
    }
  } catch (const py::error_already_set& error) {  // of a meta kernel written in Python
    if (!may_refuse(error.type().ptr()) || !cpu_takes(op, args)) {
      throw;
    }
  } catch (const std::exception&) {
    if (!cpu_takes(op, args)) {
      throw;
    }
  }
  return false;
}

// Runs the op on meta tensors; errors are those of CPU, from the same checks. False if the
// lowering has to state the results.
bool infer_by_meta(const OpInfo& op, c10::ArrayRef<c10::IValue> args, Signature& signature) {
  torch::jit::Stack stack;
  for (const c10::IValue& value : args) {
    bool filler = is_fill(op) && value.isTensor() && value.toTensor().dim() == 0;
    stack.push_back(filler ? value.toTensor().to(c10::kMeta) : to_meta(value));
  }
  bool keeps_shape = keeps_shape_of_out(op);
  if (keeps_shape) {  // the meta kernel would resize it to one dimension
    stack[op.written[0]] = at::Tensor(at::detail::empty_strided_meta(
        {0}, {1}, args[op.written[0]].toTensor().scalar_type()));
  }
  torch::jit::Stack operands = stack;  // shares the tensors: sees out= resized
  {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    std::optional<WithoutWarnings> silent;
    if (has_out(op)) {
      silent.emplace();
    }
    if (!call_meta_kernel(op, args, stack)) {
      return false;
    }
  }
  drop_unwanted(op, args, stack);
  for (size_t i = 0; i < stack.size(); ++i) {
    if (op.returns_arg[i] < 0) {
      signature.outs.push_back(out_spec(stack[i]));
    }
  }
  bool fits = keeps_shape &&
              args[op.written[0]].toTensor().numel() == operands[op.written[0]].toTensor().numel();
  add_written(op, fits ? args : c10::ArrayRef<c10::IValue>(operands), signature);
  return true;
}

// Raises what PyTorch's meta kernels let through and its CPU kernels refuse.
void refuse(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  py::gil_scoped_acquire gil;
  py::dict named;
  for (size_t i = 0; i < args.size(); ++i) {
    named[py::str(op.args[i].name)] = torch::jit::toPyObject(args[i]);
  }
  bridge("refuse")(op.name, named);
}

// Raises what CPU PyTorch does for such numbers.
void refuse_numbers(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  py::gil_scoped_acquire gil;
  bridge("refuse_numbers")(op.name, python_args(args));
}

// PyTorch has no meta kernel: the lowering itself says what it returns.
void infer_by_lowering(const OpInfo& op, c10::ArrayRef<c10::IValue> args, Signature& signature) {
  py::gil_scoped_acquire gil;
  py::list python_args;
  for (const c10::IValue& value : args) {
    python_args.append(torch::jit::toPyObject(to_meta(value)));
  }
  auto results = bridge("infer_by_lowering")(op.row, op.name, python_args).cast<py::list>();
  for (auto item : results) {
    OutSpec out;
    if (item.is_none()) {
      out.kind = OutSpec::kUndefined;
      signature.outs.push_back(std::move(out));
      continue;
    }
    auto pair = item.cast<py::tuple>();
    auto tensor = at::Tensor(at::detail::empty_strided_meta(
        pair[0].cast<std::vector<int64_t>>(), pair[1].cast<std::vector<int64_t>>(),
        py::cast<at::ScalarType>(pair[2])));
    out.tensors.push_back(spec_of(tensor));
    signature.outs.push_back(std::move(out));
  }
  add_written(op, args, signature);
}

void infer(const OpInfo& op, c10::ArrayRef<c10::IValue> args, Signature& signature) {
  bool is_stated = !op.unstated || has_plain_meta(op, args);
  if (!is_stated || !infer_by_meta(op, args, signature)) {
    infer_by_lowering(op, args, signature);
  }
}

}  // namespace

WrittenTensors written_tensors(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  WrittenTensors tensors;
  bool row_mutates = op.mutates_if < 0 || args[op.mutates_if].toBool();
  size_t count = row_mutates ? op.written.size() : static_cast<size_t>(op.first_row_mutation);
  for (size_t i = 0; i < count; ++i) {
    const c10::IValue& value = args[op.written[i]];
    if (value.isTensor()) {
      if (value.toTensor().defined()) {
        tensors.push_back(&value.toTensor());
      }
    } else if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) {
        tensors.push_back(&item.toTensor());
      }
    }
  }
  return tensors;
}

uint64_t hash_key(c10::ArrayRef<int64_t> key) {
  uint64_t hash = key.size();
  for (int64_t word : key) {
    hash = mixed(hash, static_cast<uint64_t>(word));
  }
  return hash;
}

Signature* find_or_add_signature(c10::ArrayRef<int64_t> key, bool* added) {
  uint64_t hash = hash_key(key);
  *added = false;
  Signature*& last = recent[hash % kRecent];
  if (is_of(last, key, hash)) {
    return last;
  }
  std::lock_guard<std::mutex> guard(signatures().mutex);
  last = lookup(key, hash);
  *added = last == nullptr;
  if (last == nullptr) {
    auto signature = std::make_unique<Signature>();
    signature->hash = hash;
    signature->key.assign(key.begin(), key.end());
    signature->id = static_cast<int64_t>(signatures().table.size()) + 1;
    last = signatures().table.emplace(hash, std::move(signature))->second.get();
  }
  return last;
}

int64_t signature_count() {
  std::lock_guard<std::mutex> guard(signatures().mutex);
  return static_cast<int64_t>(signatures().table.size());
}

const Signature& find_signature(const OpInfo& op, c10::ArrayRef<c10::IValue> args,
                                const Call& call) {
  uint64_t hash = hash_key(call.key);
  Signature*& last = recent[hash % kRecent];
  if (is_of(last, call.key, hash)) {
    return *last;
  }
  {
    std::lock_guard<std::mutex> guard(signatures().mutex);
    if (Signature* known = lookup(call.key, hash)) {
      last = known;
      return *known;
    }
  }
  auto made = std::make_unique<Signature>();
  made->op = &op;
  Call scratch;
  canonicalise(op, args, scratch, &made->args);
  for (const at::Tensor* tensor : scratch.tensors) {
    made->inputs.push_back(view_spec(*tensor));
  }
  if (call.doubtful) {
    refuse_numbers(op, args);
  }
  refuse(op, args);
  infer(op, args, *made);
  made->hash = hash;
  made->key.assign(call.key.begin(), call.key.end());
  std::lock_guard<std::mutex> guard(signatures().mutex);
  if (Signature* known = lookup(call.key, hash)) {
    return *known;
  }
  made->id = static_cast<int64_t>(signatures().table.size()) + 1;
  return *signatures().table.emplace(hash, std::move(made))->second;
}

}  // namespace torchtpu
