// SPDX-License-Identifier: Apache-2.0
// The functions of torchtpu_core that compiled code of this distribution calls.
#pragma once

#include "native.h"

#include <torch/csrc/utils/pybind.h>

namespace torchtpu::distributed {

// Found at the first call, with the GIL held.
inline const Native& device_api() {
  static const Native* table = [] {
    auto capsule = pybind11::module_::import("torchtpu_core._C").attr("native").cast<pybind11::capsule>();
    void* pointer = PyCapsule_GetPointer(capsule.ptr(), Native::kName);
    if (pointer == nullptr) {
      throw pybind11::error_already_set();
    }
    auto* found = static_cast<const Native*>(pointer);
    TORCH_CHECK(found->version == Native::kVersion,
                "torchtpu-core and torchtpu-distributed were built from different versions: "
                "install the same version of both.");
    return found;
  }();
  return *table;
}

}  // namespace torchtpu::distributed
