// SPDX-License-Identifier: Apache-2.0
// What the compiled parts of other distributions may ask of the device: a table of functions
// in the capsule torchtpu_core._C.native. It names no type of the device's, so that this
// header is all they need; their csrc/ has a link to it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <string>

namespace torchtpu {

using Owner = c10::intrusive_ptr_target;

// Host memory of a tensor's elements in a row, for as long as `owner` lives: no program gets it
// as a gift meanwhile. `owner` may be dropped without the GIL.
struct Memory {
  void* address = nullptr;  // null: the tensor has no memory of that kind
  c10::intrusive_ptr<Owner> owner;
};

struct Native {
  static constexpr const char* kName = "torchtpu_core._C.native";
  static constexpr int kVersion = 2;

  int version;
  // All of these: the GIL is held.
  // The caller's line, "file.py:12 in train", or in the backward pass "backward of " and the
  // forward op's; empty if unknown. It is never freed.
  const std::string& (*user_line)();
  // Runs what is recorded for a device, as before a program of its own.
  void (*flush)(c10::DeviceIndex device);
  // A tensor's elements, computed. With `write`, memory that nothing else can see: neither an
  // older version of the tensor, nor a program under way, nor an array outside; `held`, one owner
  // that this gave before and the caller still has, or null, does not count as one that sees it.
  Memory (*memory)(const at::Tensor& tensor, bool write, const Owner* held);
  // Waits for a device; raises its deferred errors.
  void (*synchronize)(c10::DeviceIndex device);
  // Occupies the current stream of a device.
  void (*add_device_time)(c10::DeviceIndex device, int64_t duration_ps);
  // Without the GIL too: the memory of an owner that `memory` gave is written from now on, or not
  // any more. A program that reads it waits, by the hook torchtpu_host_wait, until it is not.
  void (*set_written)(Owner& owner, bool written);
};

}  // namespace torchtpu
