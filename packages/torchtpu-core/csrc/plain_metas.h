// SPDX-License-Identifier: Apache-2.0
// Meta kernels in C++ of operators for which PyTorch has them in Python only, or not as CPU's take them.
//
// They are for the plain kinds of calls and refuse the others, which are then Python's.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <string_view>
#include <tuple>

namespace torchtpu::plain {

at::Tensor addmm(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2, const at::Scalar& beta,
                 const at::Scalar& alpha);
at::Tensor rsub(const at::Tensor& self, const at::Scalar& other, const at::Scalar& alpha);
at::Tensor relu(const at::Tensor& self);
at::Tensor abs(const at::Tensor& self);
at::Tensor where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other);
at::Tensor mean(const at::Tensor& self, std::optional<at::ScalarType> dtype);
std::tuple<at::Tensor, at::Tensor, at::Tensor> native_layer_norm(const at::Tensor& input, c10::SymIntArrayRef shape,
                                                                 const std::optional<at::Tensor>& weight,
                                                                 const std::optional<at::Tensor>& bias, double eps);
at::Tensor gelu(const at::Tensor& self, std::string_view approximate);
at::Tensor& normal_(at::Tensor& self, double mean, double std, std::optional<at::Generator> generator);
at::Tensor stack(at::TensorList tensors, int64_t dim);
at::Tensor masked_fill(const at::Tensor& self, const at::Tensor& mask, const at::Scalar& value);
at::Tensor add(const at::Tensor& self, const at::Scalar& other, const at::Scalar& alpha);
at::Tensor sub(const at::Tensor& self, const at::Scalar& other, const at::Scalar& alpha);
at::Tensor mul(const at::Tensor& self, const at::Scalar& other);
at::Tensor div(const at::Tensor& self, const at::Scalar& other);
at::Tensor isnan(const at::Tensor& self);
at::Tensor logical_not(const at::Tensor& self);
at::Tensor logical(const at::Tensor& self, const at::Tensor& other);  // and, or, xor
at::Tensor remainder(const at::Tensor& self, const at::Scalar& other);
at::Tensor floor_divide(const at::Tensor& self, const at::Tensor& other);
at::Tensor spread(const at::Tensor& self, at::OptionalIntArrayRef dim, const std::optional<at::Scalar>& correction,
                  bool keepdim);  // var and std
at::Tensor logsumexp(const at::Tensor& self, at::IntArrayRef dim, bool keepdim);
std::tuple<at::Tensor, at::Tensor, at::Tensor> native_batch_norm(
    const at::Tensor& input, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& mean, const std::optional<at::Tensor>& var, bool training, double momentum,
    double eps);
at::Tensor roll(const at::Tensor& self, c10::SymIntArrayRef shifts, at::IntArrayRef dims);
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train);
at::Tensor native_dropout_backward(const at::Tensor& grad, const at::Tensor& mask, double scale);
std::tuple<at::Tensor, at::Tensor, at::Tensor> native_group_norm(const at::Tensor& input,
                                                                 const std::optional<at::Tensor>& weight,
                                                                 const std::optional<at::Tensor>& bias,
                                                                 c10::SymInt batch, c10::SymInt channels,
                                                                 c10::SymInt area, int64_t groups, double eps);
std::tuple<at::Tensor, at::Tensor, at::Tensor> native_group_norm_backward(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& mean, const at::Tensor& rstd,
    const std::optional<at::Tensor>& weight, c10::SymInt batch, c10::SymInt channels, c10::SymInt area,
    int64_t groups, std::array<bool, 3> output_mask);
at::Tensor binary_cross_entropy(const at::Tensor& self, const at::Tensor& target,
                                const std::optional<at::Tensor>& weight, int64_t reduction);
at::Tensor binary_cross_entropy_backward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                                         const std::optional<at::Tensor>& weight, int64_t reduction);
at::Tensor binary_cross_entropy_with_logits(const at::Tensor& self, const at::Tensor& target,
                                            const std::optional<at::Tensor>& weight,
                                            const std::optional<at::Tensor>& pos_weight, int64_t reduction);

}  // namespace torchtpu::plain
