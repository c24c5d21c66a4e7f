// SPDX-License-Identifier: Apache-2.0
// torch.autocast("tpu"): PyTorch's own lists of ops by cast policy.
#include <ATen/autocast_mode.h>

namespace at::autocast {
namespace {

at::Tensor binary_cross_entropy_refused(const at::Tensor&, const at::Tensor&,
                                        const std::optional<at::Tensor>&, int64_t) {
  TORCH_CHECK(false,
              "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast "
              "on 'tpu': their input comes from a sigmoid whose low-precision result loses the tails. "
              "Use binary_cross_entropy_with_logits or BCEWithLogitsLoss, which are safe.");
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define TORCHTPU_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define TORCHTPU_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define TORCHTPU_FP32_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define TORCHTPU_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(TORCHTPU_LOWER)
  AT_FORALL_FP32(TORCHTPU_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(TORCHTPU_FP32_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(TORCHTPU_PROMOTE)
#undef TORCHTPU_LOWER
#undef TORCHTPU_FP32
#undef TORCHTPU_FP32_DTYPE
#undef TORCHTPU_PROMOTE
  m.impl("binary_cross_entropy", TORCH_FN(binary_cross_entropy_refused));
}

}  // namespace
}  // namespace at::autocast
