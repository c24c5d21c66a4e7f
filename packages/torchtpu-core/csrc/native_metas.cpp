// SPDX-License-Identifier: Apache-2.0
// data table
#include "native_metas.h"

#include "mixed.h"
#include "plain_metas.h"

#include <ATen/MetaFunctions.h>
#include <ATen/Operators.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>

namespace torchtpu {
namespace {

using Metas = std::unordered_map<std::string, c10::KernelFunction>;

template <typename Operator>
Metas::value_type entry(typename Operator::schema* kernel) {
  std::string overload = Operator::overload_name;
  std::string name = Operator::name;
  return {overload.empty() ? name : name + "." + overload,
          c10::KernelFunction::makeFromUnboxedRuntimeFunction(kernel)};
}

#define META(overload, function) entry<at::_ops::overload>(&at::meta::function)

// What CPU's kernels take of all real numbers and masks, mixed or not.
const auto* const kNumeric = new Metas{
    META(add_Tensor, add),
    META(sub_Tensor, sub),
    META(mul_Tensor, mul),
    META(div_Tensor, div),
    META(add__Tensor, add_),
    META(sub__Tensor, sub_),
    META(mul__Tensor, mul_),
    META(div__Tensor, div_),
    META(maximum, maximum),
    META(minimum, minimum),
    META(eq_Tensor, eq),
    META(ne_Tensor, ne),
    META(lt_Tensor, lt),
    META(le_Tensor, le),
    META(gt_Tensor, gt),
    META(ge_Tensor, ge),
    META(eq_Scalar, eq),
    META(ne_Scalar, ne),
    META(lt_Scalar, lt),
    META(le_Scalar, le),
    META(gt_Scalar, gt),
    META(ge_Scalar, ge),
    META(neg, neg),
    META(sum_dim_IntList, sum),
    META(any, any),
    META(any_dim, any),
    META(all, all),
    META(all_dim, all),
    META(cumsum, cumsum),
    META(cumprod, cumprod),
    entry<at::_ops::rsub_Scalar>(&plain::rsub),
    entry<at::_ops::relu>(&plain::relu),
    entry<at::_ops::abs>(&plain::abs),
    entry<at::_ops::where_self>(&plain::where),
    entry<at::_ops::add_Scalar>(&plain::add),
    entry<at::_ops::sub_Scalar>(&plain::sub),
    entry<at::_ops::mul_Scalar>(&plain::mul),
    entry<at::_ops::div_Scalar>(&plain::div),
    entry<at::_ops::logical_and>(&plain::logical),
    entry<at::_ops::logical_or>(&plain::logical),
    entry<at::_ops::logical_xor>(&plain::logical),
    entry<at::_ops::logical_not>(&plain::logical_not),
    entry<at::_ops::isnan>(&plain::isnan),
    entry<at::_ops::remainder_Scalar>(&plain::remainder),
    entry<at::_ops::floor_divide>(&plain::floor_divide),
    entry<at::_ops::native_dropout_backward>(&plain::native_dropout_backward),
};

// What they take of whole numbers and masks.
const auto* const kBitwise = new Metas{
    META(bitwise_and_Tensor, bitwise_and),
    META(bitwise_or_Tensor, bitwise_or),
    META(bitwise_xor_Tensor, bitwise_xor),
    META(bitwise_not, bitwise_not),
    META(bitwise_and__Tensor, bitwise_and_),
    META(bitwise_or__Tensor, bitwise_or_),
    META(bitwise_xor__Tensor, bitwise_xor_),
};

// What moves elements, whatever they are, or refuses the call.
const auto* const kMoving = new Metas{
    META(cat, cat),
    META(gather, gather),
    META(tril, tril_symint),
    META(triu, triu_symint),
    entry<at::_ops::stack>(&plain::stack),
    entry<at::_ops::masked_fill_Scalar>(&plain::masked_fill),
    entry<at::_ops::roll>(&plain::roll),
};

// What they take of numbers of one floating type.
const auto* const kArithmetic = new Metas{
    META(pow_Tensor_Scalar, pow),
    META(pow_Tensor_Tensor, pow),
    META(pow_Scalar, pow),
    META(remainder_Tensor, remainder),
    META(fmod_Tensor, fmod),
    META(addcmul, addcmul),
    META(addcdiv, addcdiv),
    META(lerp_Scalar, lerp),
    META(lerp_Tensor, lerp),
    META(clamp, clamp),
    META(clamp_min, clamp_min),
    META(clamp_max, clamp_max),
    META(clamp_Tensor, clamp),
    META(clamp_min_Tensor, clamp_min),
    META(clamp_max_Tensor, clamp_max),
    META(atan2, atan2),
    // functions
    META(sgn, sgn),
    META(sign, sign),
    META(exp, exp),
    META(exp2, exp2),
    META(expm1, expm1),
    META(log, log),
    META(log2, log2),
    META(log10, log10),
    META(log1p, log1p),
    META(sqrt, sqrt),
    META(rsqrt, rsqrt),
    META(reciprocal, reciprocal),
    META(sin, sin),
    META(cos, cos),
    META(tan, tan),
    META(tanh, tanh),
    META(sigmoid, sigmoid),
    META(erf, erf),
    META(floor, floor),
    META(ceil, ceil),
    META(round, round),
    META(trunc, trunc),
    META(frac, frac),
    // activations
    entry<at::_ops::gelu>(&plain::gelu),
    META(silu, silu),
    META(mish, mish),
    META(hardsigmoid, hardsigmoid),
    META(leaky_relu, leaky_relu),
    META(elu, elu),
    META(softplus, softplus),
    META(threshold, threshold),
    META(glu, glu),
    META(gelu_backward, gelu_backward),
    META(tanh_backward, tanh_backward),
    META(sigmoid_backward, sigmoid_backward),
    META(threshold_backward, threshold_backward),
    META(leaky_relu_backward, leaky_relu_backward),
    META(elu_backward, elu_backward),
    META(softplus_backward, softplus_backward),
    META(hardsigmoid_backward, hardsigmoid_backward),
    // reductions
    entry<at::_ops::mean>(&plain::mean),
    entry<at::_ops::var_correction>(&plain::spread),
    entry<at::_ops::std_correction>(&plain::spread),
    entry<at::_ops::logsumexp>(&plain::logsumexp),
    entry<at::_ops::isinf>(&plain::isnan),
    META(mean_dim, mean),
    META(amax, amax),
    META(amin, amin),
    META(max_dim, max),
    META(min_dim, min),
    META(argmax, argmax),
    META(argmin, argmin),
    META(linalg_vector_norm, linalg_vector_norm),
    META(prod_dim_int, prod),
    // products
    META(mm, mm),
    META(bmm, bmm),
    entry<at::_ops::addmm>(&plain::addmm),
    META(baddbmm, baddbmm),
    META(addmv, addmv),
    // normalising
    META(_softmax, _softmax),
    META(_log_softmax, _log_softmax),
    META(_softmax_backward_data, _softmax_backward_data),
    META(_log_softmax_backward_data, _log_softmax_backward_data),
    entry<at::_ops::native_batch_norm>(&plain::native_batch_norm),
    entry<at::_ops::native_layer_norm>(&plain::native_layer_norm),
    entry<at::_ops::native_group_norm>(&plain::native_group_norm),
    entry<at::_ops::native_group_norm_backward>(&plain::native_group_norm_backward),
    // losses
    META(mse_loss, mse_loss),
    META(smooth_l1_loss, smooth_l1_loss),
    entry<at::_ops::binary_cross_entropy>(&plain::binary_cross_entropy),
    entry<at::_ops::binary_cross_entropy_backward>(&plain::binary_cross_entropy_backward),
    entry<at::_ops::binary_cross_entropy_with_logits>(&plain::binary_cross_entropy_with_logits),
    // random
    entry<at::_ops::normal_>(&plain::normal_),
    entry<at::_ops::native_dropout>(&plain::native_dropout),
};

// What they take of numbers of one floating type and 64-bit classes.
const auto* const kOfClasses = new Metas{
    META(nll_loss_forward, nll_loss_forward_symint),
    META(nll_loss_backward, nll_loss_backward_symint),
};

// What they do not all take.
const auto* const kOthers = new Metas{
    // moving
    META(index_Tensor, index),
    META(index_add, index_add),
    META(index_copy, index_copy),
    META(scatter_src, scatter),
    META(scatter_value, scatter),
    META(scatter_add, scatter_add),
    META(scatter_reduce_two, scatter_reduce),
    META(sort_stable, sort),
    META(topk, topk_symint),
    // pooling
    META(max_pool2d_with_indices, max_pool2d_with_indices),
    META(max_pool2d_with_indices_backward, max_pool2d_with_indices_backward),
    META(avg_pool2d, avg_pool2d),
    META(avg_pool2d_backward, avg_pool2d_backward),
    META(upsample_nearest2d, upsample_nearest2d_symint),
    META(upsample_nearest2d_backward, upsample_nearest2d_backward_symint),
    META(upsample_bilinear2d, upsample_bilinear2d_symint),
};

#undef META

// What of a call, besides sizes and numbers, decides whether CPU's kernels accept it.
uint64_t kinds_of(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  uint64_t kinds = mixed(0, static_cast<uint64_t>(op.uid));  // spread: what follows are small words
  auto add_tensor = [&](const at::Tensor& tensor) {
    uint64_t dtype = tensor.defined() ? static_cast<uint64_t>(tensor.scalar_type()) + 1 : 0;
    kinds = mixed(kinds, dtype * 128 + (tensor.defined() ? static_cast<uint64_t>(tensor.dim()) : 0));
  };
  for (size_t i = 0; i < args.size(); ++i) {
    const c10::IValue& value = args[i];
    if (value.isTensor()) {
      add_tensor(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) {
        add_tensor(tensor);
      }
    } else if (value.isString()) {
      kinds = mixed(kinds, std::hash<std::string>()(value.toStringRef()));
    } else if (op.args[i].dtype && value.isInt()) {
      kinds = mixed(kinds, static_cast<uint64_t>(value.toInt()));
    } else {
      kinds = mixed(kinds, std::hash<std::string>()(value.tagKind()));
    }
  }
  return kinds;
}

bool is_floating(at::ScalarType type) {
  return type == at::kFloat || type == at::kDouble || type == at::kHalf || type == at::kBFloat16;
}

// Whether CPU's kernel takes the dtypes of a call, so that Python's need not be asked, of which the
// elementwise ones import Dynamo at their first call: a second.
bool is_plain(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  if (kMoving->count(op.name) != 0) {
    return std::none_of(args.begin(), args.end(), [](const c10::IValue& value) {
      return value.isTensor() && value.toTensor().defined() && value.toTensor().is_complex();
    });
  }
  bool numeric = kNumeric->count(op.name) != 0;
  bool mixed = numeric || kBitwise->count(op.name) != 0;
  bool of_classes = kOfClasses->count(op.name) != 0;
  if (!mixed && !of_classes && kArithmetic->count(op.name) == 0) {
    return false;
  }
  std::optional<at::ScalarType> dtype;
  for (size_t i = 0; i < args.size(); ++i) {
    const c10::IValue& value = args[i];
    if (value.isTensor() && value.toTensor().defined()) {
      const at::Tensor& tensor = value.toTensor();
      at::ScalarType type = tensor.scalar_type();
      if (of_classes && type == at::kLong) {
        continue;
      }
      bool whole = type == at::kLong || type == at::kInt || (mixed && type == at::kBool);
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number() && (whole || (type == at::kDouble && (numeric || !mixed)))) {
        continue;
      }
      bool fits = mixed ? whole || (numeric && is_floating(type)) : is_floating(type) && type == dtype.value_or(type);
      if (!fits) {
        return false;
      }
      dtype = type;
    } else if (value.isTensorList() || value.isComplexDouble() || (op.args[i].dtype && value.isInt())) {
      return false;
    }
  }
  return dtype.has_value();
}

// Of the calls that Python's meta kernels have accepted.
class Kinds {
 public:
  bool has(uint64_t kinds) {
    std::lock_guard<std::mutex> guard(mutex_);
    return known_.count(kinds) != 0;
  }
  void add(uint64_t kinds) {
    std::lock_guard<std::mutex> guard(mutex_);
    known_.insert(kinds);
  }

 private:
  std::mutex mutex_;
  std::unordered_set<uint64_t> known_;
};

}  // namespace

const c10::KernelFunction* native_meta(const std::string& overload) {
  for (const Metas* metas : {kNumeric, kBitwise, kMoving, kArithmetic, kOfClasses, kOthers}) {
    if (auto found = metas->find(overload); found != metas->end()) {
      return &found->second;
    }
  }
  return nullptr;
}

bool has_plain_meta(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  return op.native_meta != nullptr && is_plain(op, args);
}

void call_meta(const OpInfo& op, c10::ArrayRef<c10::IValue> args, torch::jit::Stack& stack) {
  static auto* accepted = new Kinds();
  if (op.native_meta == nullptr) {
    op.handle->callBoxed(&stack);
    return;
  }
  uint64_t kinds = kinds_of(op, args);
  bool known = accepted->has(kinds);
  if (known || is_plain(op, args)) {
    torch::jit::Stack given = stack;
    try {
      op.native_meta->callBoxed(*op.handle, c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
      if (!known) {
        accepted->add(kinds);
      }
      return;
    } catch (const c10::Error&) {
      stack = std::move(given);  // Python's decide: a C++ one may refuse what the CPU does
    }
  }
  op.handle->callBoxed(&stack);
  accepted->add(kinds);
}

}  // namespace torchtpu
