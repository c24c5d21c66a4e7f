// SPDX-License-Identifier: Apache-2.0
// Flags that a user attaches to a tensor (torch._utils.set_tensor_metadata) and that
// torch.save keeps. The backend itself has no metadata beyond the storage's.
#include "device.h"
#include "hooks.h"

#include <c10/core/TensorImpl.h>
#include <torch/csrc/jit/serialization/pickler_helper.h>

#include <string>
#include <unordered_map>

namespace torchtpu {
namespace {

using Flags = std::unordered_map<std::string, bool>;

struct TensorFlags final : c10::BackendMeta {
  explicit TensorFlags(Flags flags_in) : flags(std::move(flags_in)) {}
  Flags flags;
};

void get_flags(const at::Tensor& tensor, Flags& flags) {
  auto* meta = dynamic_cast<TensorFlags*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
  if (meta != nullptr) {
    flags = meta->flags;
  }
}

void set_flags(const at::Tensor& tensor, Flags& flags) {
  tensor.unsafeGetTensorImpl()->set_backend_meta(c10::make_intrusive<TensorFlags>(flags));
}

}  // namespace

void register_backend_meta() {
  torch::jit::TensorBackendMetaRegistry(kTpu, &get_flags, &set_flags);
}

}  // namespace torchtpu
