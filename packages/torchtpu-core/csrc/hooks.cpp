// SPDX-License-Identifier: Apache-2.0
// What PyTorch asks the backend about itself.
#include "allocator.h"
#include "device.h"
#include "generator.h"
#include "hooks.h"
#include "pinned.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>

namespace torchtpu {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return is_started(); }
  void init() const override { ensure_started(); }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { exchange_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return exchange_device(device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? current_device() : exchange_device(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return new_generator(device);
  }
  at::Device getDeviceFromPtr(void* data) const override {
    auto device = device_of_address(data);
    TORCH_CHECK(device >= 0, "The pointer is not the address of a tpu storage.");
    return {kTpu, device};
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    resize_storage(storage.unsafeGetStorageImpl(), nbytes);
  }
};

}  // namespace

void register_hooks() {
  c10::SetAllocator(kTpu, device_allocator());
  register_pinned_allocator();
  at::RegisterPrivateUse1HooksInterface(new Hooks());  // PyTorch keeps it for the process
}

}  // namespace torchtpu
