// SPDX-License-Identifier: Apache-2.0
#include "plain_metas.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MetaFunctions.h>
#include <ATen/core/Reduction.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/result_type.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <vector>

namespace torchtpu::plain {
namespace {

at::Tensor like(const at::Tensor& tensor, at::ScalarType dtype) {
  return at::Tensor(at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), dtype));
}

// A number beside tensors, whose dtype counts less than theirs.
at::Tensor wrapped(const at::Scalar& number) {
  at::ScalarType type = number.isFloatingPoint() ? at::kDouble : number.isBoolean() ? at::kBool : at::kLong;
  at::Tensor tensor(at::detail::empty_strided_meta({}, {}, type));
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

// Like a tensor that is contiguous and not empty.
at::Tensor same(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_contiguous() && tensor.numel() > 0, "not of the plain kind");
  return at::Tensor(at::detail::empty_meta(tensor.sizes(), tensor.scalar_type()));
}

void check_vector(const std::optional<at::Tensor>& tensor, int64_t size) {
  TORCH_CHECK(!tensor || !tensor->defined() || tensor->sizes() == at::IntArrayRef(size), "not of the plain kind");
}

}  // namespace

// CPU's kernel, not its meta kernel, sees whether the first operand expands to the product.
at::Tensor addmm(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                 const at::Scalar& beta, const at::Scalar& alpha) {
  at::Tensor result = at::meta::addmm(self, mat1, mat2, beta, alpha);
  TORCH_CHECK(at::is_expandable_to(self.sizes(), result.sizes()), "addmm: a tensor of shape ",
              self.sizes(), " does not expand to ", result.sizes());
  return result;
}

at::Tensor rsub(const at::Tensor& self, const at::Scalar& other, const at::Scalar& alpha) {
  return at::meta::sub(wrapped(other), self, alpha);
}

at::Tensor relu(const at::Tensor& self) { return at::meta::neg(self); }

at::Tensor abs(const at::Tensor& self) {
  return like(at::meta::neg(self), c10::toRealValueType(self.scalar_type()));
}

at::Tensor where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(condition.scalar_type() == at::kBool, "where: not a mask");
  auto places = at::TensorIteratorConfig()
                    .check_all_same_dtype(false)
                    .declare_static_dtype(at::result_type(self, other))
                    .add_owned_output(at::Tensor())
                    .add_const_input(condition)
                    .add_const_input(self)
                    .add_const_input(other)
                    .build();
  return places.output();
}

at::Tensor mean(const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  return at::meta::mean(self, at::OptionalIntArrayRef(), false, dtype);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> native_layer_norm(const at::Tensor& input, c10::SymIntArrayRef shape,
                                                          const std::optional<at::Tensor>& weight,
                                                          const std::optional<at::Tensor>& bias, double) {
  auto first = static_cast<size_t>(input.dim()) - shape.size();
  auto matches = [&](const std::optional<at::Tensor>& tensor) {
    return !tensor || !tensor->defined() || tensor->sym_sizes() == shape;
  };
  bool wide = input.scalar_type() == at::kFloat || input.scalar_type() == at::kDouble;
  TORCH_CHECK(wide && input.is_contiguous() && input.numel() > 0 && !shape.empty() &&
                  shape.size() <= static_cast<size_t>(input.dim()) &&
                  input.sym_sizes().slice(first) == shape && matches(weight) && matches(bias),
              "layer_norm: not of the plain kind");
  std::vector<int64_t> sizes = input.sizes().vec();
  std::fill(sizes.begin() + static_cast<int64_t>(first), sizes.end(), 1);
  auto made = [&](at::IntArrayRef of) { return at::Tensor(at::detail::empty_meta(of, input.scalar_type())); };
  return {made(input.sizes()), made(sizes), made(sizes)};
}

at::Tensor gelu(const at::Tensor& self, std::string_view approximate) {
  TORCH_CHECK(approximate == "none" || approximate == "tanh", "gelu: neither of its forms");
  return at::meta::gelu(self, approximate);
}

at::Tensor& normal_(at::Tensor& self, double, double std, std::optional<at::Generator>) {
  TORCH_CHECK(std >= 0, "normal_: a negative deviation");
  return self;
}

// Of contiguous tensors of one shape and dtype; others are Python's.
at::Tensor stack(at::TensorList tensors, int64_t dim) {
  TORCH_CHECK(!tensors.empty(), "stack: no tensors");
  const at::Tensor& first = tensors[0];
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK(tensor.sizes() == first.sizes() && tensor.scalar_type() == first.scalar_type() &&
                    tensor.is_contiguous(),
                "stack: not of the plain kind");
  }
  std::vector<int64_t> sizes = first.sizes().vec();
  auto place = sizes.begin() + c10::maybe_wrap_dim(dim, first.dim() + 1);
  sizes.insert(place, static_cast<int64_t>(tensors.size()));
  return at::Tensor(at::detail::empty_meta(sizes, first.scalar_type()));
}

// Of floating point numbers whose shape the mask expands to; CPU's result is contiguous.
at::Tensor masked_fill(const at::Tensor& self, const at::Tensor& mask, const at::Scalar& value) {
  TORCH_CHECK(self.is_floating_point() && !value.isComplex() && mask.scalar_type() == at::kBool &&
                  at::is_expandable_to(mask.sizes(), self.sizes()),
              "masked_fill: not of the plain kind");
  return at::Tensor(at::detail::empty_meta(self.sizes(), self.scalar_type()));
}

at::Tensor add(const at::Tensor& self, const at::Scalar& other, const at::Scalar& alpha) {
  return at::meta::add(self, wrapped(other), alpha);
}

at::Tensor sub(const at::Tensor& self, const at::Scalar& other, const at::Scalar& alpha) {
  return at::meta::sub(self, wrapped(other), alpha);
}

at::Tensor mul(const at::Tensor& self, const at::Scalar& other) { return at::meta::mul(self, wrapped(other)); }

at::Tensor div(const at::Tensor& self, const at::Scalar& other) { return at::meta::div(self, wrapped(other)); }

at::Tensor isnan(const at::Tensor& self) { return at::meta::ne(self, self); }

at::Tensor logical_not(const at::Tensor& self) { return at::meta::ne(self, self); }

at::Tensor logical(const at::Tensor& self, const at::Tensor& other) { return at::meta::ne(self, other); }

at::Tensor remainder(const at::Tensor& self, const at::Scalar& other) {
  return plain::floor_divide(self, wrapped(other));
}

at::Tensor floor_divide(const at::Tensor& self, const at::Tensor& other) {
  at::Tensor result = at::meta::remainder(self, other);
  TORCH_CHECK(result.scalar_type() != at::kBool, "floor_divide: of masks");
  return result;
}

at::Tensor spread(const at::Tensor& self, at::OptionalIntArrayRef dim, const std::optional<at::Scalar>&,
                  bool keepdim) {
  return at::meta::mean(self, dim, keepdim, std::nullopt);
}

at::Tensor logsumexp(const at::Tensor& self, at::IntArrayRef dim, bool keepdim) {
  return at::meta::amax(self, dim, keepdim);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> native_batch_norm(
    const at::Tensor& input, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& mean, const std::optional<at::Tensor>& var, bool training, double, double) {
  bool wide = input.scalar_type() == at::kFloat || input.scalar_type() == at::kDouble;
  bool is_there = training || (mean && mean->defined() && var && var->defined());
  TORCH_CHECK(wide && is_there && input.dim() > 1 && input.numel() > 0,
              "batch_norm: not of the plain kind");
  for (const auto* each : {&weight, &bias, &mean, &var}) {
    TORCH_CHECK(!*each || !(*each)->defined() || (*each)->sizes() == input.sizes().slice(1, 1),
                "batch_norm: not of the plain kind");
  }
  auto format = input.is_contiguous() ? at::MemoryFormat::Contiguous : input.suggest_memory_format();
  auto of_features = [&] { return at::Tensor(at::detail::empty_meta(input.sizes().slice(1, 1), input.scalar_type())); };
  return {at::Tensor(at::detail::empty_meta(input.sizes(), input.scalar_type(), format)), of_features(), of_features()};
}

at::Tensor roll(const at::Tensor& self, c10::SymIntArrayRef shifts, at::IntArrayRef dims) {
  TORCH_CHECK(self.dim() > 0 && shifts.size() == (dims.empty() ? 1 : dims.size()), "roll: not of the plain kind");
  for (int64_t dim : dims) {
    c10::maybe_wrap_dim(dim, self.dim());
  }
  return same(self);
}

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  TORCH_CHECK(train.value_or(true) && p > 0 && p < 1, "dropout: not of the plain kind");
  return {same(input), at::Tensor(at::detail::empty_meta(input.sizes(), at::kBool))};
}

at::Tensor native_dropout_backward(const at::Tensor& grad, const at::Tensor& mask, double) {
  TORCH_CHECK(grad.is_floating_point() && mask.scalar_type() == at::kBool && mask.sizes() == grad.sizes(),
              "dropout: not of the plain kind");
  return same(grad);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> native_group_norm(
    const at::Tensor& input, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    c10::SymInt batch, c10::SymInt channels, c10::SymInt area, int64_t groups, double) {
  int64_t n = batch.expect_int();
  int64_t c = channels.expect_int();
  bool wide = input.scalar_type() == at::kFloat || input.scalar_type() == at::kDouble;
  TORCH_CHECK(wide && input.dim() > 1 && groups > 0 && c % groups == 0 && input.numel() == n * c * area.expect_int(),
              "group_norm: not of the plain kind");
  check_vector(weight, c);
  check_vector(bias, c);
  auto of_groups = [&] { return at::Tensor(at::detail::empty_meta({n, groups}, input.scalar_type())); };
  return {same(input), of_groups(), of_groups()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> native_group_norm_backward(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& mean, const at::Tensor& rstd,
    const std::optional<at::Tensor>& weight, c10::SymInt batch, c10::SymInt channels, c10::SymInt area,
    int64_t groups, std::array<bool, 3> output_mask) {
  auto made = plain::native_group_norm(input, weight, std::nullopt, batch, channels, area, groups, 0);
  const at::Tensor& of_groups = std::get<1>(made);
  TORCH_CHECK(grad.sizes() == input.sizes() && mean.sizes() == of_groups.sizes() && rstd.sizes() == of_groups.sizes(),
              "group_norm: not of the plain kind");
  auto of_channels = [&](bool asked) {
    return asked ? at::Tensor(at::detail::empty_meta({channels.expect_int()}, input.scalar_type())) : at::Tensor();
  };
  return {output_mask[0] ? std::get<0>(made) : at::Tensor(), of_channels(output_mask[1]), of_channels(output_mask[2])};
}

at::Tensor binary_cross_entropy(const at::Tensor& self, const at::Tensor& target,
                                const std::optional<at::Tensor>& weight, int64_t reduction) {
  TORCH_CHECK(target.sizes() == self.sizes() && (!weight || !weight->defined() || weight->sizes() == self.sizes()),
              "binary_cross_entropy: not of the plain kind");
  at::Tensor each = same(self);
  return reduction == at::Reduction::None ? each : at::Tensor(at::detail::empty_meta({}, self.scalar_type()));
}

at::Tensor binary_cross_entropy_backward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                                         const std::optional<at::Tensor>& weight, int64_t reduction) {
  at::Tensor loss = plain::binary_cross_entropy(self, target, weight, reduction);
  TORCH_CHECK(grad.sizes() == loss.sizes(), "binary_cross_entropy: not of the plain kind");
  return same(self);
}

at::Tensor binary_cross_entropy_with_logits(const at::Tensor& self, const at::Tensor& target,
                                            const std::optional<at::Tensor>& weight,
                                            const std::optional<at::Tensor>& pos_weight, int64_t reduction) {
  TORCH_CHECK(!pos_weight || !pos_weight->defined() || at::is_expandable_to(pos_weight->sizes(), self.sizes()),
              "binary_cross_entropy: not of the plain kind");
  return plain::binary_cross_entropy(self, target, weight, reduction);
}

}  // namespace torchtpu::plain
