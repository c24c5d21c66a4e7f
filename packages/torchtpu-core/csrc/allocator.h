// SPDX-License-Identifier: Apache-2.0
// Storages of the device: a DataPtr whose context is a Slot and whose data pointer
// is an address nobody may read, unique to the storage.
#pragma once

#include "value.h"

#include <ATen/core/TensorBase.h>
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include <vector>

namespace torchtpu {

// A new storage's DataPtr on `device` (which exists), with nothing written yet.
c10::DataPtr new_data_ptr(c10::DeviceIndex device, size_t nbytes);

// The allocator PyTorch asks for `tpu` memory; allocates on the current device.
c10::Allocator* device_allocator();

// The slot behind a storage; also for storages that share ours through DLPack.
// Throws if the storage does not belong to this device.
Slot* slot_of(const c10::Storage& storage);
inline Slot* slot_of(const at::TensorBase& tensor) { return slot_of(tensor.storage()); }

// Where a tensor begins in its slot, in elements: its storage offset, and what lies before its
// storage if that came through DLPack, which hands over the address of the first element.
inline int64_t offset_in_slot(const at::TensorBase& tensor, const Slot& slot) {
  auto before = static_cast<const char*>(tensor.storage().data()) -
                static_cast<const char*>(slot.address());
  return before == 0 ? tensor.storage_offset()  // no division where ops are recorded
                     : tensor.storage_offset() + before / static_cast<int64_t>(tensor.itemsize());
}

// Throws if a tensor has elements and its storage has none (Storage.resize_(0)).
void require_contents(const at::TensorBase& tensor, const Slot& slot);

// Changes a storage's size and keeps its contents (torch.Storage.resize_).
void resize_storage(c10::StorageImpl* storage, size_t nbytes);

// The values that storages of a device hold now: what uses its memory.
std::vector<ValuePtr> live_values(c10::DeviceIndex device);

// The figures of a device's memory once all recorded operators hold theirs: launches them.
MemoryCounters& settled_memory_counters(c10::DeviceIndex device);

// The device whose storage covers an address, or -1.
c10::DeviceIndex device_of_address(const void* address);

}  // namespace torchtpu
