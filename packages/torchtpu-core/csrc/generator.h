// SPDX-License-Identifier: Apache-2.0
// The random generator of a device: a counter, (seed, offset).
#pragma once

#include <ATen/core/Generator.h>

namespace torchtpu {

struct RngState {
  uint64_t seed;
  uint64_t offset;
};

// The default generator of a device.
const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator new_generator(c10::DeviceIndex device);

// The state for one op, and moves the generator past it. `generator` may be
// undefined: the default one of `device`. Throws if it is another device's.
RngState next_state(const std::optional<at::Generator>& generator, c10::DeviceIndex device,
                    uint64_t draws = 1);

}  // namespace torchtpu
