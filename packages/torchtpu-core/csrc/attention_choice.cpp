// SPDX-License-Identifier: Apache-2.0
// Which kernel F.scaled_dot_product_attention uses: the fused one where its lowering
// applies, PyTorch's composed math otherwise.
#include <ATen/Context.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <torch/library.h>

namespace torchtpu {
namespace {

// The device has one fused kernel, so each of PyTorch's fused backends means it.
bool fused_allowed() {
  const auto& context = at::globalContext();
  return context.userEnabledOverrideableSDP() || context.userEnabledFlashSDP() ||
         context.userEnabledMemEfficientSDP() || context.userEnabledCuDNNSDP();
}

// One head of keys, and of values, for each of the query, or if asked for one for several.
bool heads_match(const at::Tensor& query, const at::Tensor& other, bool enable_gqa) {
  const auto heads = query.sym_size(1), own = other.sym_size(1);
  return heads == own || (enable_gqa && own != 0 && heads % own == 0);
}

// The fused operators have no rule for torch.vmap; those of the composed math have.
bool is_batched(const at::Tensor& tensor) {
  return tensor.key_set().has(c10::DispatchKey::FuncTorchBatched);
}

// Sizes may be symbolic: torch.compile asks with fake tensors.
int64_t choose(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const std::optional<at::Tensor>& mask, double /*dropout*/, bool /*is_causal*/,
               std::optional<double> /*scale*/, bool enable_gqa) {
  bool fused = fused_allowed() && query.dim() == 4 && key.dim() == 4 && value.dim() == 4 &&
               !query.is_nested() && !is_batched(query) && !is_batched(key) &&
               !is_batched(value) && heads_match(query, key, enable_gqa) &&
               heads_match(query, value, enable_gqa) && query.sym_numel() > 0 &&
               key.sym_numel() > 0 && at::isFloatingType(query.scalar_type()) &&
               (!mask.has_value() || !mask->defined() ||
                mask->scalar_type() == query.scalar_type() || mask->scalar_type() == c10::kBool);
  return static_cast<int64_t>(fused ? sdp::SDPBackend::overrideable : sdp::SDPBackend::math);
}

// The operator of the same name, which users may call themselves.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) { library.impl("_fused_sdp_choice", &choose); }

}  // namespace
}  // namespace torchtpu

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &torchtpu::choose)
}  // namespace at::native
