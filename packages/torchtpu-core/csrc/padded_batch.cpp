// SPDX-License-Identifier: Apache-2.0
// The nested tensors that nn.TransformerEncoder makes of a padding mask in eval mode.
//
// XLA's shapes are static, so nothing is packed: the buffer of such a nested tensor is the
// padded batch (B, T, D), of which row i is the first length[i] tokens of batch i. Only what
// the encoder's fast path calls is served here (packed nested tensors: nested.cpp).
#include <ATen/NestedTensorImpl.h>
#include <ATen/ops/_transformer_encoder_layer_fwd.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/to_padded_tensor_native.h>
#include <torch/library.h>

namespace torchtpu {
namespace {

struct PaddedBatch {
  at::Tensor tokens;   // (B, T, D)
  at::Tensor lengths;  // (B,) int64, on the host
};

at::Tensor nested_of(const PaddedBatch& batch) {
  int64_t width = batch.tokens.size(2), step = batch.tokens.size(1) * width;
  at::Tensor same = at::full_like(batch.lengths, width);
  at::Tensor sizes = at::stack({batch.lengths, same}, 1);
  at::Tensor strides = at::stack({same, at::ones_like(same)}, 1);
  at::Tensor offsets = at::arange(batch.lengths.numel(), at::kLong).mul(step);
  return at::detail::make_tensor<at::native::NestedTensorImpl>(
      batch.tokens.contiguous().reshape(-1), sizes, strides, offsets);
}

// A user's own nested tensor: its rows fill its buffer, with no padding after the last either.
bool is_packed(const at::native::NestedTensorImpl* nested) {
  return at::native::nested_tensor_impl_is_contiguous(nested) &&
         nested->get_unsafe_storage_as_tensor().numel() == nested->get_nested_sizes().prod(1).sum().item<int64_t>();
}

// Of a packed nested tensor too.
PaddedBatch padded_of(const at::Tensor& nested) {
  const auto* impl = at::native::get_nested_tensor_impl(nested);
  const at::Tensor& sizes = impl->get_nested_sizes();
  if (is_packed(impl)) {
    return {at::native::NestedTensor_to_padded_tensor_generic(nested, 0), sizes.select(1, 0).contiguous()};
  }
  at::Tensor buffer = impl->get_unsafe_storage_as_tensor();
  int64_t rows = sizes.size(0), width = impl->get_nested_strides().select(1, 0)[0].item<int64_t>();
  return {buffer.view({rows, buffer.numel() / (rows * width), width}), sizes.select(1, 0).contiguous()};
}

// (B, T) on the device, true where a row has no token.
at::Tensor padding_of(const PaddedBatch& batch) {
  at::Tensor place = at::arange(batch.tokens.size(1), batch.tokens.options().dtype(at::kLong));
  return place.unsqueeze(0).ge(batch.lengths.to(batch.tokens.device()).unsqueeze(1));
}

bool left_aligned(const at::Tensor& tokens, const at::Tensor& mask) {
  at::Tensor place = at::arange(tokens.size(1), mask.options().dtype(at::kLong)).unsqueeze(0);
  return place.lt(mask.sum(1, true)).eq(mask).all().item<bool>();
}

at::Tensor from_mask(const at::Tensor& tokens, const at::Tensor& mask, bool check) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "Expected mask to be of ScalarType Bool, but got ",
              mask.scalar_type(), " instead.");
  TORCH_CHECK(mask.dim() == 2 && tokens.dim() == 3 && mask.size(0) == tokens.size(0) &&
                  mask.size(1) == tokens.size(1),
              "Mask size should match input size: a mask (B, T) for an input (B, T, D), not ",
              mask.sizes(), " for ", tokens.sizes(), ".");
  TORCH_CHECK(!check || left_aligned(tokens, mask), "Mask must be left-aligned without gaps");
  return nested_of({tokens, mask.sum(1).cpu()});
}

at::Tensor encoder_layer(
    const at::Tensor& src, int64_t embed_dim, int64_t heads, const at::Tensor& qkv_weight,
    const at::Tensor& qkv_bias, const at::Tensor& proj_weight, const at::Tensor& proj_bias,
    bool use_gelu, bool norm_first, double eps, const at::Tensor& norm_weight_1,
    const at::Tensor& norm_bias_1, const at::Tensor& norm_weight_2,
    const at::Tensor& norm_bias_2, const at::Tensor& ffn_weight_1, const at::Tensor& ffn_bias_1,
    const at::Tensor& ffn_weight_2, const at::Tensor& ffn_bias_2,
    const std::optional<at::Tensor>& mask, std::optional<int64_t> /*mask_type*/) {
  TORCH_CHECK(!mask.has_value(), "a nested batch carries its padding; it takes no other mask");
  PaddedBatch batch = padded_of(src);
  constexpr int64_t kPaddingMask = 1;
  batch.tokens = at::_transformer_encoder_layer_fwd(
      batch.tokens, embed_dim, heads, qkv_weight, qkv_bias, proj_weight, proj_bias, use_gelu,
      norm_first, eps, norm_weight_1, norm_bias_1, norm_weight_2, norm_bias_2, ffn_weight_1,
      ffn_bias_1, ffn_weight_2, ffn_bias_2, padding_of(batch), kPaddingMask);
  return nested_of(batch);
}

at::Tensor to_padded(const at::Tensor& nested, double padding, at::OptionalIntArrayRef size) {
  if (nested.dim() != 3 || is_packed(at::native::get_nested_tensor_impl(nested))) {
    return at::native::NestedTensor_to_padded_tensor_generic(nested.contiguous(), padding, size);
  }
  PaddedBatch batch = padded_of(nested);
  int64_t longest = batch.lengths.max().item<int64_t>();
  int64_t wanted = size.has_value() ? (*size)[1] : longest;
  TORCH_CHECK(wanted >= longest && (!size.has_value() || ((*size)[0] == batch.tokens.size(0) &&
                                                        (*size)[2] == batch.tokens.size(2))),
              "Value in output_size is less than NestedTensor padded size. Truncation is not supported.");
  at::Tensor dense = batch.tokens.masked_fill(padding_of(batch).unsqueeze(2), padding);
  if (wanted <= dense.size(1)) {
    return dense.slice(1, 0, wanted).contiguous();
  }
  return at::constant_pad_nd(dense, {0, 0, 0, wanted - dense.size(1)}, padding);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_nested_tensor_from_mask", TORCH_FN(from_mask));
  m.impl("_nested_tensor_from_mask_left_aligned", TORCH_FN(left_aligned));
}

TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  m.impl("_transformer_encoder_layer_fwd", TORCH_FN(encoder_layer));
  m.impl("to_padded_tensor", TORCH_FN(to_padded));
}

}  // namespace
}  // namespace torchtpu
