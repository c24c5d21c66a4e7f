// SPDX-License-Identifier: Apache-2.0
// Page-locked host memory for fast transfers. XLA's CPU client needs none: plain memory,
// remembered so that is_pinned() answers truthfully.
#pragma once

// PyTorch's header pads to the cache line, which GCC reports as dependent on -mtune.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winterference-size"
#endif
#include <ATen/core/CachingHostAllocator.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

namespace torchtpu {

at::HostAllocator* pinned_allocator();
bool is_pinned(const void* address);

// Hands the allocator to torch.accelerator, which asks it for statistics and to drop its cache.
void register_pinned_allocator();

}  // namespace torchtpu
