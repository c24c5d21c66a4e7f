// SPDX-License-Identifier: Apache-2.0
// From a boxed call to key words and operands.
#include "device.h"
#include "signature.h"

#include <ATen/Context.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <cmath>

namespace torchtpu {
namespace {

// Tags that start an argument's words; no tag equals a c10 enum on purpose.
enum Tag : int64_t {
  kNone = 100, kBool, kInt, kDouble, kComplex, kString, kIntList, kDoubleList, kBoolList,
  kOther, kTensorTag, kListTag, kScalarTag, kUndefinedTag,
};

int64_t bits_of(double value) {
  int64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

class Reader {
 public:
  Reader(const OpInfo& op, Call& call, std::vector<ArgSpec>* specs)
      : op_(op), call_(call), specs_(specs) {}

  void read(const OpArg& arg, const c10::IValue& value) {
    if (specs_ == nullptr) {
      read_into(arg, value, nullptr);
      return;
    }
    ArgSpec spec;
    spec.arg = &arg;
    read_into(arg, value, &spec);
    specs_->push_back(std::move(spec));
  }

 private:
  // `spec` is null where only the key and the operands are wanted: the usual case.
  void read_into(const OpArg& arg, const c10::IValue& value, ArgSpec* spec) {
    if (arg.role == ArgRole::kGenerator || value.isDevice() ||
        (arg.role == ArgRole::kDropped && arg.name == "non_blocking")) {
      set_kind(spec, ArgSpec::kAbsent);
      if (value.isDevice() && value.toDevice().type() == kTpu && value.toDevice().has_index()) {
        see_device(value.toDevice());
      }
    } else if (arg.role == ArgRole::kOut) {
      set_kind(spec, ArgSpec::kAbsent);
      read_out(value);
    } else if (value.isTensor()) {
      read_tensor(arg, value.toTensor(), spec);
    } else if (value.isTensorList()) {
      read_list(arg, value, spec);
    } else if (is_optional_tensor_list(value)) {
      read_list(arg, value, spec);
    } else if (is_runtime_scalar(arg, value)) {
      read_scalar(value.toScalar(), -1, spec);
    } else if (is_runtime_list(arg, value)) {
      read_scalars(value, spec);
    } else {
      read_constant(value);
      set_kind(spec, arg.role == ArgRole::kDropped ? ArgSpec::kAbsent : ArgSpec::kConstant);
      if (spec != nullptr) {
        spec->constant = value;
      }
    }
  }

  static void set_kind(ArgSpec* spec, ArgSpec::Kind kind) {
    if (spec != nullptr) {
      spec->kind = kind;
    }
  }

  static void set_index(ArgSpec* spec, size_t index) {
    if (spec != nullptr) {
      spec->index.push_back(static_cast<int>(index));
    }
  }

  static bool is_optional_tensor_list(const c10::IValue& value) {
    if (!value.isList()) {
      return false;
    }
    const auto type = value.toList().elementType();
    return type->kind() == c10::TypeKind::OptionalType || type->kind() == c10::TypeKind::TensorType;
  }

  bool is_special(const c10::IValue& value) const {
    return !op_.special.empty() &&
           std::find(op_.special.begin(), op_.special.end(), value.toScalar().toDouble()) !=
               op_.special.end();
  }

  bool is_runtime_scalar(const OpArg& arg, const c10::IValue& value) const {
    if (is_number(value) && is_special(value)) {
      return false;
    }
    if (arg.role == ArgRole::kRuntime) {
      return is_number(value);
    }
    if (!arg.number || arg.role != ArgRole::kValue || !is_number(value)) {
      return false;
    }
    return arg.default_value.isNone() || !same_number(value, arg.default_value);
  }

  static bool is_number(const c10::IValue& value) {
    return value.isDouble() || value.isInt() || value.isBool();
  }

  static bool is_runtime_list(const OpArg& arg, const c10::IValue& value) {
    if (arg.role == ArgRole::kRuntime) {
      return value.isIntList() || value.isDoubleList();
    }
    if (!arg.number || arg.role != ArgRole::kValue || !value.isList()) {
      return false;
    }
    const auto list = value.toListRef();
    return std::all_of(list.begin(), list.end(), is_number);
  }

  static bool same_number(const c10::IValue& a, const c10::IValue& b) {
    return is_number(b) && a.toScalar().toDouble() == b.toScalar().toDouble();
  }

  void see_device(c10::Device device) {
    if (call_.device < 0) {
      call_.device = device.index();
    }
    TORCH_CHECK(call_.device == device.index(),
                "Expected all tensors to be on the same device, but found at least two devices, tpu:",
                static_cast<int>(call_.device), " and tpu:", static_cast<int>(device.index()),
                "! (when checking arguments of ", op_.name, ")");
  }

  void push_meta(const at::Tensor& tensor) {
    call_.key.push_back(kTensorTag | (static_cast<int64_t>(tensor.scalar_type()) << 16) |
                        (tensor.dim() << 32));
    for (int64_t size : tensor.sizes()) {
      call_.key.push_back(size);
    }
    for (int64_t stride : tensor.strides()) {
      call_.key.push_back(stride);
    }
  }

  void read_tensor(const OpArg& arg, const at::Tensor& tensor, ArgSpec* spec) {
    if (!tensor.defined()) {
      call_.key.push_back(kUndefinedTag);
      set_kind(spec, ArgSpec::kConstant);
      return;
    }
    if (tensor.device().type() == kTpu) {
      see_device(tensor.device());
      push_meta(tensor);
      set_kind(spec, ArgSpec::kTensor);
      set_index(spec, call_.tensors.size());
      call_.tensors.push_back(&tensor);
      return;
    }
    if (op_.uploads && tensor.device().is_cpu() && !arg.written) {
      read_tensor(arg, uploaded(tensor), spec);
      return;
    }
    // Fused optimizers take a rate of one element in any number of dimensions, as on CUDA.
    bool scalar = tensor.dim() == 0 || (arg.role == ArgRole::kRuntime && tensor.numel() == 1);
    bool host_scalar = tensor.device().is_cpu() && scalar && !arg.written;
    TORCH_CHECK(host_scalar,
                "Expected all tensors to be on the same device, but found at least two devices, tpu:",
                static_cast<int>(call_.device < 0 ? current_device() : call_.device), " and ",
                tensor.device(), "! (when checking argument '", arg.name, "' of ", op_.name,
                "). Move it with .to('tpu').");
    bool wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
    if (tensor.is_complex()) {
      auto number = tensor.item().toComplexDouble();
      call_.key.append({kComplex, bits_of(number.real()), bits_of(number.imag()),
                        static_cast<int64_t>(tensor.scalar_type()), wrapped});
      set_kind(spec, ArgSpec::kConstant);
      if (spec != nullptr) {
        spec->constant = c10::IValue(number);
      }
      return;
    }
    read_scalar(tensor.item(), wrapped ? -1 : static_cast<int>(tensor.scalar_type()), spec);
  }

  const at::Tensor& uploaded(const at::Tensor& tensor) {
    c10::Device device(kTpu, call_.device < 0 ? current_device() : call_.device);
    call_.uploaded.push_front(tensor.to(device));
    return call_.uploaded.front();
  }

  // A list function takes numbers on the host as its elementwise one does: an optimizer's step
  // sizes, where its learning rate is a tensor.
  bool is_number_of_list_function(const OpArg& arg, const at::Tensor& tensor) const {
    return tensor.device().is_cpu() && tensor.dim() == 0 && !arg.written &&
           op_.name.rfind("aten::_foreach_", 0) == 0;
  }

  void read_list(const OpArg& arg, const c10::IValue& value, ArgSpec* spec) {
    set_kind(spec, ArgSpec::kTensorList);
    const auto list = value.toListRef();
    call_.key.push_back(kListTag | (static_cast<int64_t>(list.size()) << 16));
    for (const c10::IValue& item : list) {
      if (item.isNone() || !item.toTensor().defined()) {
        call_.key.push_back(kUndefinedTag);
        if (spec != nullptr) {
          spec->index.push_back(-1);
        }
        continue;
      }
      size_t index = call_.tensors.size();
      const at::Tensor& tensor = item.toTensor();
      read_tensor(arg, is_number_of_list_function(arg, tensor) ? uploaded(tensor) : tensor, nullptr);
      TORCH_CHECK(call_.tensors.size() == index + 1,
                  "Expected all tensors to be on the same device, but found a cpu tensor in '",
                  arg.name, "' of ", op_.name, ". Move it with .to('tpu').");
      set_index(spec, index);
    }
  }

  void read_out(const c10::IValue& value) {
    auto one = [&](const at::Tensor& tensor) {
      TORCH_CHECK(tensor.device().type() == kTpu, "Expected out tensor to be on device tpu, but it is on ",
                  tensor.device(), " (out= argument of ", op_.name, ").");
      see_device(tensor.device());
      push_meta(tensor);
    };
    if (value.isTensor()) {
      one(value.toTensor());
      return;
    }
    for (const c10::IValue& item : value.toListRef()) {
      one(item.toTensor());
    }
  }

  void read_scalar(const at::Scalar& number, int dtype, ArgSpec* spec) {
    char kind = number.isBoolean() ? 'b' : number.isFloatingPoint() ? 'f' : 'i';
    if (spec != nullptr) {
      spec->kind = ArgSpec::kScalar;
      spec->scalar_kinds.push_back(kind);
      spec->scalar_dtype = dtype;
    }
    set_index(spec, call_.scalars.size());
    call_.key.push_back(kScalarTag | (static_cast<int64_t>(kind) << 16) |
                        (static_cast<int64_t>(dtype + 1) << 32));
    call_.scalars.push_back(number.isFloatingPoint() ? pack_double(number.toDouble())
                                                     : pack_int(number.toLong()));
  }

  // A number that is the same all along the list, as an optimizer's for each parameter, is
  // one operand: a program reads it once. Whether it is, is in the key.
  void read_scalars(const c10::IValue& value, ArgSpec* spec) {
    const auto list = value.toListRef();
    bool repeats = list.size() > 1 && std::all_of(list.begin() + 1, list.end(), [&](const auto& x) {
      return is_same_number(x, list[0]);
    });
    call_.key.push_back(kListTag | (static_cast<int64_t>(list.size()) << 16) |
                        (static_cast<int64_t>(repeats) << 48));
    for (const c10::IValue& item : repeats ? list.slice(0, 1) : list) {
      read_scalar(item.toScalar(), -1, spec);
    }
    set_kind(spec, ArgSpec::kScalarList);
    if (repeats && spec != nullptr) {
      spec->index.resize(list.size(), spec->index[0]);
      spec->scalar_kinds.resize(list.size(), spec->scalar_kinds[0]);
    }
  }

  static bool is_same_number(const c10::IValue& a, const c10::IValue& b) {
    if (a.isDouble() && b.isDouble()) {
      return bits_of(a.toDouble()) == bits_of(b.toDouble());
    }
    return a.isInt() && b.isInt() && a.toInt() == b.toInt();
  }

  void read_constant(const c10::IValue& value) {
    auto& key = call_.key;
    if (value.isNone()) {
      key.push_back(kNone);
    } else if (value.isBool()) {
      key.push_back(kBool | (static_cast<int64_t>(value.toBool()) << 16));
    } else if (value.isInt()) {
      key.append({kInt, value.toInt()});
    } else if (value.isDouble()) {
      key.append({kDouble, bits_of(value.toDouble())});
    } else if (value.isComplexDouble()) {
      auto number = value.toComplexDouble();
      key.append({kComplex, bits_of(number.real()), bits_of(number.imag())});
    } else if (value.isString()) {
      push_bytes(kString, value.toStringRef());
    } else if (value.isIntList()) {
      auto list = value.toIntVector();
      key.append({kIntList, static_cast<int64_t>(list.size())});
      key.append(list.begin(), list.end());
    } else if (value.isList()) {
      const auto list = value.toListRef();
      key.append({kOther, static_cast<int64_t>(list.size())});
      for (const auto& item : list) {
        read_constant(item);
      }
    } else {
      key.append({kOther, static_cast<int64_t>(value.hash().toInt())});
    }
  }

  void push_bytes(Tag tag, const std::string& bytes) {
    call_.key.append({tag, static_cast<int64_t>(bytes.size())});
    for (size_t i = 0; i < bytes.size(); i += sizeof(int64_t)) {
      int64_t word = 0;
      std::memcpy(&word, bytes.data() + i, std::min(sizeof(word), bytes.size() - i));
      call_.key.push_back(word);
    }
  }

  const OpInfo& op_;
  Call& call_;
  std::vector<ArgSpec>* specs_;
};

// Adds how many elements a range has: its start, end and step are no part of the key.
void push_count(const OpInfo& op, c10::ArrayRef<c10::IValue> args, Call& call) {
  at::Scalar start = 0, end = 0, step = 1;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& name = op.args[i].name;
    at::Scalar* place = name == "start" ? &start : name == "end" ? &end
                        : name == "step" ? &step : nullptr;
    if (place != nullptr && args[i].isScalar()) {
      *place = args[i].toScalar();
    }
  }
  if (start.isComplex() || end.isComplex() || step.isComplex()) {
    return;  // such a number is a constant, and in the key
  }
  double count = (end.toDouble() - start.toDouble()) / step.toDouble();
  if (!(count >= 0 && count < 9e15)) {  // a mistake: it is found when the signature is made
    call.key.append({bits_of(start.toDouble()), bits_of(end.toDouble()), bits_of(step.toDouble())});
    return;
  }
  call.key.append({static_cast<int64_t>(std::floor(count)), static_cast<int64_t>(std::ceil(count))});
  // An integer range of fractions: each is cut first.
  int64_t whole_step = step.isFloatingPoint() ? static_cast<int64_t>(step.toDouble()) : step.toLong();
  if (whole_step != 0 && (start.isFloatingPoint() || end.isFloatingPoint())) {
    call.key.push_back((static_cast<int64_t>(end.toDouble()) -
                        static_cast<int64_t>(start.toDouble())) / whole_step);
  }
}

}  // namespace

ScalarWords pack_bits(uint64_t bits) {
  return {{static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32), 0}};
}

ScalarWords pack_int(int64_t value) {
  ScalarWords packed = pack_bits(static_cast<uint64_t>(value));
  auto single = static_cast<float>(value);
  std::memcpy(&packed.words[2], &single, sizeof(single));
  return packed;
}

ScalarWords pack_double(double value) {
  ScalarWords packed = pack_bits(static_cast<uint64_t>(bits_of(value)));
  auto single = static_cast<float>(value);
  std::memcpy(&packed.words[2], &single, sizeof(single));
  return packed;
}

void canonicalise(const OpInfo& op, c10::ArrayRef<c10::IValue> args, Call& call,
                  std::vector<ArgSpec>* specs) {
  // The default dtype decides what whole numbers divide to, among others.
  call.key.append({op.uid, static_cast<int64_t>(c10::get_default_dtype_as_scalartype())});
  Reader reader(op, call, specs);
  for (size_t i = 0; i < args.size(); ++i) {
    reader.read(op.args[i], args[i]);
  }
  if (op.ranged) {
    push_count(op, args, call);
  }
  call.doubtful = !op.number_rules.empty() && push_doubtful(op, args, call.key);
  if (op.contracts) {  // the last word of the key: describe.cpp reads it there
    call.key.push_back(static_cast<int64_t>(at::globalContext().float32MatmulPrecision()));
  }
  if (call.device < 0) {
    call.device = current_device();
  }
}

}  // namespace torchtpu
