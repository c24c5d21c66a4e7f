// SPDX-License-Identifier: Apache-2.0
#include "allocator.h"

#include "bridge.h"
#include "device.h"
#include "trace.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <map>
#include <mutex>
#include <unordered_map>

namespace torchtpu {
namespace {

// Addresses start above user space's canonical half, so reading one faults cleanly
// instead of returning somebody's memory.
std::atomic<uintptr_t> next_address{uintptr_t{1} << 60};
constexpr uintptr_t kAlignment = 256;

struct Registry {
  std::mutex mutex;
  std::map<uintptr_t, Slot*> slots;  // by first address
};

Registry& registry() {
  static auto* the_registry = new Registry();
  return *the_registry;
}

Slot* find_by_address(const void* address) {
  auto& all = registry();
  std::lock_guard<std::mutex> guard(all.mutex);
  auto it = all.slots.upper_bound(reinterpret_cast<uintptr_t>(address));
  if (it == all.slots.begin()) {
    return nullptr;
  }
  --it;
  return reinterpret_cast<uintptr_t>(address) < it->first + it->second->nbytes() ? it->second
                                                                                  : nullptr;
}

void delete_slot(void* context) {
  auto* slot = static_cast<Slot*>(context);
  if (slot->address() != nullptr) {
    auto& all = registry();
    std::lock_guard<std::mutex> guard(all.mutex);
    all.slots.erase(reinterpret_cast<uintptr_t>(slot->address()));
  }
  delete slot;
}

using Statistic = c10::CachingAllocator::Stat;
constexpr auto kAllPools = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

Statistic statistic(int64_t current, int64_t peak, int64_t allocated) {
  Statistic value;
  value.current = current;
  value.peak = peak;
  value.allocated = allocated;
  value.freed = allocated - current;
  return value;
}

// What torch.accelerator.memory_* reads. XLA caches nothing: reserved is allocated.
struct DeviceAllocator final : c10::DeviceAllocator {
  bool initialized() override { return is_started(); }
  void emptyCache(c10::MempoolId_t /*pool*/) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const MemoryCounters& counters = settled_memory_counters(device);
    c10::CachingDeviceAllocator::DeviceStats stats;
    Statistic bytes = statistic(counters.allocated, counters.peak, counters.allocated_ever);
    stats.allocated_bytes[kAllPools] = bytes;
    stats.active_bytes[kAllPools] = bytes;
    stats.reserved_bytes[kAllPools] = bytes;
    stats.requested_bytes[kAllPools] = bytes;
    int64_t made = counters.allocations;
    int64_t live = made - counters.frees;
    stats.allocation[kAllPools] = statistic(live, live, made);  // the peak of counts is not kept
    stats.active[kAllPools] = stats.allocation[kAllPools];
    stats.num_ooms = counters.failures;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    MemoryCounters& counters = memory_counters(device);
    counters.allocated_ever = counters.allocated.load();
    counters.failures = 0;
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    settled_memory_counters(device).peak = memory_counters(device).allocated.load();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    py::gil_scoped_acquire gil;
    return bridge("memory_info")(static_cast<int>(device)).cast<std::pair<size_t, size_t>>();
  }
  c10::DataPtr allocate(size_t nbytes) override { return new_data_ptr(current_device(), nbytes); }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false,
                "The memory of a tpu storage has no host address to copy from. "
                "Use tensor.clone() or tensor.cpu().");
  }
};

}  // namespace

MemoryCounters& settled_memory_counters(c10::DeviceIndex device) {
  if (is_started()) {
    std::optional<py::gil_scoped_release> release;
    if (PyGILState_Check() != 0) {
      release.emplace();
    }
    flush_device(device, FlushReason::kHostRead);
  }
  return memory_counters(device);
}

c10::DataPtr new_data_ptr(c10::DeviceIndex device, size_t nbytes) {
  void* address = nullptr;
  if (nbytes > 0) {
    uintptr_t span = (nbytes + kAlignment - 1) / kAlignment * kAlignment;
    address = reinterpret_cast<void*>(next_address.fetch_add(span));
  }
  auto* slot = new Slot(device, nbytes, address);
  if (address != nullptr) {
    std::lock_guard<std::mutex> guard(registry().mutex);
    registry().slots.emplace_hint(registry().slots.end(), reinterpret_cast<uintptr_t>(address), slot);
  }
  return {address, slot, &delete_slot, c10::Device(c10::DeviceType::PrivateUse1, device)};
}

c10::Allocator* device_allocator() {
  static DeviceAllocator allocator;
  return &allocator;
}

Slot* slot_of(const c10::Storage& storage) {
  const c10::DataPtr& data = storage.data_ptr();
  if (data.get_deleter() == &delete_slot) {
    return static_cast<Slot*>(data.get_context());
  }
  Slot* slot = data.get() == nullptr ? nullptr : find_by_address(data.get());
  TORCH_CHECK(slot != nullptr || storage.nbytes() == 0,
              "A tensor says it is on 'tpu' but its storage was not made by torchtpu. "
              "Create it with torch.empty(..., device='tpu') or tensor.to('tpu').");
  if (slot == nullptr) {
    thread_local Slot empty(0, 0, nullptr);
    return &empty;
  }
  return slot;
}

void require_contents(const at::TensorBase& tensor, const Slot& slot) {
  TORCH_CHECK(slot.nbytes() > 0 || tensor.numel() == 0, "A tensor of ", tensor.sizes(),
              " is read but its storage holds 0 bytes: it was freed with resize_(0). Give it its "
              "size back and write it before it is read.");
}

void resize_storage(c10::StorageImpl* storage, size_t nbytes) {
  Slot* old = slot_of(c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage)));
  c10::DataPtr data = new_data_ptr(old->device(), nbytes);
  ValuePtr value = old->get();
  if (value && old->nbytes() > 0 && nbytes > 0) {  // an empty value is never computed
    static_cast<Slot*>(data.get_context())->exchange(resized_value(value, nbytes));
  }
  storage->set_data_ptr(std::move(data));
  storage->set_nbytes(nbytes);
}

std::vector<ValuePtr> live_values(c10::DeviceIndex device) {
  std::vector<ValuePtr> values;
  std::lock_guard<std::mutex> guard(registry().mutex);
  for (const auto& [address, slot] : registry().slots) {
    ValuePtr value = slot->device() == device ? slot->get() : ValuePtr();
    if (value && value->array.load() != nullptr) {
      values.push_back(std::move(value));
    }
  }
  return values;
}

c10::DeviceIndex device_of_address(const void* address) {
  Slot* slot = find_by_address(address);
  return slot == nullptr ? c10::DeviceIndex(-1) : slot->device();
}

}  // namespace torchtpu
