// SPDX-License-Identifier: Apache-2.0
// What the compiled parts of other distributions may ask of the device: a table of functions
// in the capsule torchtpu_core._C.native. It names no type of the device's, so that this
// header is all they need; their csrc/ has a link to it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <string>

namespace torchtpu {

// Host memory of a tensor's elements in a row, for as long as `owner` lives: no program gets it
// as a gift meanwhile. `owner` may be dropped without the GIL.
struct Memory {
  void* address = nullptr;  // null: the tensor has no memory of that kind
  c10::intrusive_ptr<c10::intrusive_ptr_target> owner;
};

struct Native {
  static constexpr const char* kName = "torchtpu_core._C.native";
  static constexpr int kVersion = 1;

  int version;
  // All of these: the GIL is held.
  // The caller's line, "file.py:12 in train"; empty if unknown. It is never freed.
  const std::string& (*user_line)();
  // Runs what is recorded for a device, as before a program of its own.
  void (*flush)(c10::DeviceIndex device);
  // A tensor's elements, computed. With `write`, memory that nothing else can see: neither an
  // older version of the tensor, nor a program under way, nor an array outside.
  Memory (*memory)(const at::Tensor& tensor, bool write);
  // Waits for a device; raises its deferred errors.
  void (*synchronize)(c10::DeviceIndex device);
  // Occupies the current stream of a device.
  void (*add_device_time)(c10::DeviceIndex device, int64_t duration_ps);
};

}  // namespace torchtpu
