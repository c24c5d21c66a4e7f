// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace torchtpu {

// Registers the allocator and PyTorch's hooks of the backend.
void register_hooks();

// Lets torch.save keep the flags users attach to tensors.
void register_backend_meta();

}  // namespace torchtpu
