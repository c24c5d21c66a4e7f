// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace torchtpu {

// Registers the allocator and PyTorch's hooks of the backend.
void register_hooks();

}  // namespace torchtpu
