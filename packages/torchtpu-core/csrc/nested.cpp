// SPDX-License-Identifier: Apache-2.0
// Nested tensors of the strided layout: PyTorch's own kernels, which are written in operators on
// the buffer and on its pieces, run on the device as those operators do. Kernels that read
// memory are left out. Jagged nested tensors (layout=torch.jagged) need none of this but attention,
// which PyTorch computes on strided ones.
#include "device.h"

#include <ATen/native/nested/NestedTensorUtils.h>
#include <torch/library.h>

#include <ATen/ops/_nested_from_padded_and_nested_example_native.h>
#include <ATen/ops/_nested_from_padded_native.h>
#include <ATen/ops/_nested_view_from_buffer_native.h>
#include <ATen/ops/_nested_select_backward_native.h>
#include <ATen/ops/_nested_tensor_size_native.h>
#include <ATen/ops/_nested_tensor_storage_offsets_native.h>
#include <ATen/ops/_nested_tensor_strides_native.h>
#include <ATen/ops/_softmax_backward_data_native.h>
#include <ATen/ops/_softmax_native.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/abs_native.h>
#include <ATen/ops/add_native.h>
#include <ATen/ops/alias_native.h>
#include <ATen/ops/all_native.h>
#include <ATen/ops/bmm_native.h>
#include <ATen/ops/cat_native.h>
#include <ATen/ops/chunk_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/cos_native.h>
#include <ATen/ops/div_native.h>
#include <ATen/ops/embedding_native.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/eq_native.h>
#include <ATen/ops/fill_native.h>
#include <ATen/ops/ge_native.h>
#include <ATen/ops/gelu_backward_native.h>
#include <ATen/ops/gelu_native.h>
#include <ATen/ops/gt_native.h>
#include <ATen/ops/is_same_size_native.h>
#include <ATen/ops/isinf_native.h>
#include <ATen/ops/isnan_native.h>
#include <ATen/ops/isneginf_native.h>
#include <ATen/ops/isposinf_native.h>
#include <ATen/ops/linear_backward_native.h>
#include <ATen/ops/linear_native.h>
#include <ATen/ops/logical_not_native.h>
#include <ATen/ops/masked_fill_native.h>
#include <ATen/ops/matmul_backward_native.h>
#include <ATen/ops/matmul_native.h>
#include <ATen/ops/mul_native.h>
#include <ATen/ops/narrow_native.h>
#include <ATen/ops/native_dropout_native.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/neg_native.h>
#include <ATen/ops/normal_native.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/relu_native.h>
#include <ATen/ops/select_native.h>
#include <ATen/ops/sgn_native.h>
#include <ATen/ops/silu_backward_native.h>
#include <ATen/ops/silu_native.h>
#include <ATen/ops/sin_native.h>
#include <ATen/ops/split_with_sizes_native.h>
#include <ATen/ops/sqrt_native.h>
#include <ATen/ops/squeeze_native.h>
#include <ATen/ops/sub_native.h>
#include <ATen/ops/sum_native.h>
#include <ATen/ops/tanh_native.h>
#include <ATen/ops/threshold_backward_native.h>
#include <ATen/ops/transpose_native.h>
#include <ATen/ops/unbind_native.h>
#include <ATen/ops/unsqueeze_native.h>
#include <ATen/ops/values_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/where_native.h>
#include <ATen/ops/zero_native.h>

namespace torchtpu {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor wrapped_as(const at::Tensor& buffer, const at::Tensor& nested) {
  return at::native::wrap_buffer(buffer.reshape(-1), at::native::get_nested_tensor_impl(nested)->get_nested_sizes());
}

// (tokens of all rows, width)
at::Tensor rows_of(const at::Tensor& nested, at::IntArrayRef normalized) {
  TORCH_CHECK(nested.is_contiguous(), "layer_norm takes a contiguous nested tensor: call .contiguous()");
  return at::native::get_buffer(nested).reshape({-1, c10::multiply_integers(normalized)});
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm(
    const at::Tensor& input, at::IntArrayRef normalized, const OptionalTensor& weight,
    const OptionalTensor& bias, double eps) {
  auto [output, mean, rstd] = at::native_layer_norm(
      rows_of(input, normalized), {c10::multiply_integers(normalized)},
      weight.has_value() ? OptionalTensor(weight->reshape(-1)) : weight,
      bias.has_value() ? OptionalTensor(bias->reshape(-1)) : bias, eps);
  return {wrapped_as(output, input), mean, rstd};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward(
    const at::Tensor& grad, const at::Tensor& input, at::IntArrayRef normalized,
    const at::Tensor& mean, const at::Tensor& rstd, const OptionalTensor& weight,
    const OptionalTensor& bias, std::array<bool, 3> wanted) {
  auto [grad_input, grad_weight, grad_bias] = at::native_layer_norm_backward(
      rows_of(grad, normalized), rows_of(input, normalized), {c10::multiply_integers(normalized)}, mean, rstd,
      weight.has_value() ? OptionalTensor(weight->reshape(-1)) : weight,
      bias.has_value() ? OptionalTensor(bias->reshape(-1)) : bias, wanted);
  return {wanted[0] ? wrapped_as(grad_input, input) : at::Tensor(),
          wanted[1] ? grad_weight.reshape(normalized) : at::Tensor(),
          wanted[2] ? grad_bias.reshape(normalized) : at::Tensor()};
}

at::Tensor& fill_with_number(at::Tensor& self, const at::Scalar& value) {
  return at::native::fill_nested_(self, value);
}

at::Tensor squeeze_one(const at::Tensor& self, int64_t dim) {
  return at::native::squeeze_dim_nested(self, dim);
}

at::Tensor safe_softmax(const at::Tensor& self, int64_t dim, std::optional<at::ScalarType> dtype) {
  return at::native::softmax_nested(dtype.has_value() ? self.to(*dtype) : self, dim, false);
}

at::Tensor ones_like_nested(
    const at::Tensor& self, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat>) {
  const at::Tensor& buffer = at::native::get_nested_tensor_impl(self)->get_unsafe_storage_as_tensor();
  return wrapped_as(at::ones_like(buffer, buffer.options().dtype(dtype)), self);
}

void refuse_nested(const c10::OperatorHandle& op, torch::jit::Stack* /*stack*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op.schema().name(), ": strided nested tensors on device 'tpu' do not have this operator. "
      "Jagged ones have more: torch.nested.nested_tensor(..., layout=torch.jagged). Or compute on "
      "the CPU: x.cpu().");
}

TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_nested>());
}

#define SERVED_BY(op, kernel) library.impl(op, TORCH_FN(at::native::kernel))

TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, library) {
  library.impl("native_layer_norm", TORCH_FN(layer_norm));
  library.impl("native_layer_norm_backward", TORCH_FN(layer_norm_backward));
  library.impl("fill_.Scalar", TORCH_FN(fill_with_number));
  library.impl("squeeze.dim", TORCH_FN(squeeze_one));
  library.impl("_safe_softmax", TORCH_FN(safe_softmax));
  library.impl("ones_like", TORCH_FN(ones_like_nested));
  // what it is
  SERVED_BY("_nested_tensor_size", _nested_tensor_size);
  SERVED_BY("_nested_tensor_strides", _nested_tensor_strides);
  SERVED_BY("_nested_tensor_storage_offsets", _nested_tensor_storage_offsets);
  SERVED_BY("is_same_size", nested_is_same_size);
  // views and copies
  SERVED_BY("unbind.int", NestedTensor_unbind);
  SERVED_BY("select.int", select_nested);
  SERVED_BY("values", values_nested);
  SERVED_BY("alias", alias_nested);
  SERVED_BY("view", view_nested);
  SERVED_BY("transpose.int", transpose_nested);
  SERVED_BY("squeeze", squeeze_nested);
  SERVED_BY("unsqueeze", unsqueeze_nested);
  SERVED_BY("chunk", chunk_nested_tensor);
  SERVED_BY("split_with_sizes", split_with_sizes_nested);
  SERVED_BY("narrow", narrow_nested_symint);
  SERVED_BY("cat", cat_nested);
  SERVED_BY("clone", clone_nested);
  SERVED_BY("copy_", copy_nested_);
  SERVED_BY("_to_copy", _to_copy_nested);
  SERVED_BY("empty_like", empty_like_nested);
  SERVED_BY("zero_", zero_nested_);
  SERVED_BY("normal_", normal_nested_);
  SERVED_BY("_nested_select_backward", _nested_select_backward_symint);
  SERVED_BY("_nested_from_padded_and_nested_example", NestedTensor_from_padded_and_nested_example);
}

TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, library) {  // pointwise
  SERVED_BY("add.Tensor", NestedTensor_add_Tensor);
  SERVED_BY("add_.Tensor", NestedTensor_add__Tensor);
  SERVED_BY("sub.Tensor", NestedTensor_sub_Tensor);
  SERVED_BY("mul.Tensor", NestedTensor_mul_Tensor);
  SERVED_BY("mul_.Tensor", NestedTensor_mul__Tensor);
  SERVED_BY("mul.Scalar", NestedTensor_mul_Scalar);
  SERVED_BY("mul_.Scalar", NestedTensor_mul__Scalar);
  SERVED_BY("div.Tensor", NestedTensor_div_Tensor);
  SERVED_BY("div.Scalar", NestedTensor_div_Scalar);
  SERVED_BY("neg", NestedTensor_neg);
  SERVED_BY("neg_", NestedTensor_neg_);
  SERVED_BY("abs", NestedTensor_abs);
  SERVED_BY("abs_", NestedTensor_abs_);
  SERVED_BY("relu", NestedTensor_relu);
  SERVED_BY("relu_", NestedTensor_relu_);
  SERVED_BY("gelu", NestedTensor_gelu);
  SERVED_BY("gelu_", NestedTensor_gelu_);
  SERVED_BY("silu", NestedTensor_silu);
  SERVED_BY("silu_", NestedTensor_silu_);
  SERVED_BY("tanh", NestedTensor_tanh);
  SERVED_BY("tanh_", NestedTensor_tanh_);
  SERVED_BY("sgn", NestedTensor_sgn);
  SERVED_BY("sgn_", NestedTensor_sgn_);
  SERVED_BY("sin", NestedTensor_sin);
  SERVED_BY("cos", NestedTensor_cos);
  SERVED_BY("sqrt", NestedTensor_sqrt);
  SERVED_BY("isnan", NestedTensor_isnan);
  SERVED_BY("isinf", NestedTensor_isinf);
  SERVED_BY("isposinf", NestedTensor_isposinf);
  SERVED_BY("isneginf", NestedTensor_isneginf);
  SERVED_BY("logical_not", NestedTensor_logical_not);
  SERVED_BY("logical_not_", NestedTensor_logical_not_);
  SERVED_BY("eq.Scalar", eq_scalar_nested);
  SERVED_BY("eq.Tensor", eq_tensor_nested);
  SERVED_BY("ge.Scalar", ge_scalar_nested);
  SERVED_BY("gt.Scalar", gt_scalar_nested);
  SERVED_BY("where.self", NestedTensor_where);
  SERVED_BY("masked_fill.Scalar", NestedTensor_masked_fill);
  SERVED_BY("gelu_backward", gelu_backwards_nested);
  SERVED_BY("silu_backward", silu_backward_nested);
  SERVED_BY("threshold_backward", threshold_backwards_nested);
  SERVED_BY("native_dropout", native_dropout_nested);
  // products, reductions, lookups
  SERVED_BY("matmul", matmul_nested);
  SERVED_BY("matmul_backward", matmul_backward_nested);
  SERVED_BY("linear", nested_linear);
  SERVED_BY("linear_backward", nested_linear_backward);
  SERVED_BY("bmm", bmm_nested);
  SERVED_BY("_softmax", softmax_nested);
  SERVED_BY("_softmax_backward_data", nested_softmax_backward);
  SERVED_BY("embedding", NestedTensor_embedding);
  SERVED_BY("all.dim", NestedTensor_all);
  SERVED_BY("sum.dim_IntList", NestedTensor_sum_dim_CPU);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {  // from dense tensors
  SERVED_BY("_nested_view_from_buffer", _nested_view_from_buffer);
  SERVED_BY("_nested_from_padded", nested_from_padded_generic);
}

#undef SERVED_BY

}  // namespace
}  // namespace torchtpu
