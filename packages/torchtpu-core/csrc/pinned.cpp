// SPDX-License-Identifier: Apache-2.0
#include "pinned.h"

#include <c10/core/CPUAllocator.h>

#include <map>
#include <mutex>

namespace torchtpu {
namespace {

struct Pinned {
  std::mutex mutex;
  std::map<uintptr_t, size_t> ranges;  // bytes by first address
  c10::CachingAllocator::Stat blocks;
  c10::CachingAllocator::Stat bytes;
};

Pinned& pinned() {
  static auto* the_pinned = new Pinned();
  return *the_pinned;
}

void delete_pinned(void* address) {
  {
    std::lock_guard<std::mutex> guard(pinned().mutex);
    auto it = pinned().ranges.find(reinterpret_cast<uintptr_t>(address));
    if (it != pinned().ranges.end()) {
      pinned().blocks.decrease(1);
      pinned().bytes.decrease(it->second);
      pinned().ranges.erase(it);
    }
  }
  c10::GetDefaultCPUAllocator()->raw_deleter()(address);
}

struct PinnedAllocator final : at::HostAllocator {
  c10::DataPtr allocate(size_t nbytes) override {
    c10::DataPtr data = c10::GetDefaultCPUAllocator()->allocate(nbytes);
    void* address = data.get();
    if (address == nullptr) {
      return data;
    }
    data.release_context();
    std::lock_guard<std::mutex> guard(pinned().mutex);
    pinned().ranges[reinterpret_cast<uintptr_t>(address)] = nbytes;
    pinned().blocks.increase(1);
    pinned().bytes.increase(nbytes);
    return {address, address, &delete_pinned, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_pinned; }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }

  // A transfer has read its host memory when its call returns: there is nothing to wait for.
  bool record_event(void* address, void*, c10::Stream) override { return is_pinned(address); }
  void empty_cache() override {}  // freed memory goes back to the system at once

  at::HostStats get_stats() override {
    std::lock_guard<std::mutex> guard(pinned().mutex);
    at::HostStats stats;
    stats.active_requests = stats.allocations = pinned().blocks;
    stats.active_bytes = stats.allocated_bytes = pinned().bytes;
    stats.num_host_alloc = pinned().blocks.allocated;
    stats.num_host_free = pinned().blocks.freed;
    return stats;
  }
  void reset_accumulated_stats() override {
    std::lock_guard<std::mutex> guard(pinned().mutex);
    pinned().blocks.reset_accumulated();
    pinned().bytes.reset_accumulated();
  }
  void reset_peak_stats() override {
    std::lock_guard<std::mutex> guard(pinned().mutex);
    pinned().blocks.reset_peak();
    pinned().bytes.reset_peak();
  }
};

}  // namespace

at::HostAllocator* pinned_allocator() {
  static PinnedAllocator allocator;
  return &allocator;
}

bool is_pinned(const void* address) {
  std::lock_guard<std::mutex> guard(pinned().mutex);
  auto it = pinned().ranges.upper_bound(reinterpret_cast<uintptr_t>(address));
  if (it == pinned().ranges.begin()) {
    return false;
  }
  --it;
  return reinterpret_cast<uintptr_t>(address) < it->first + std::max<size_t>(it->second, 1);
}

void register_pinned_allocator() { at::setHostAllocator(c10::kPrivateUse1, pinned_allocator()); }

}  // namespace torchtpu
