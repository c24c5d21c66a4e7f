// SPDX-License-Identifier: Apache-2.0
// One step of the hash that keys are kept by.
#pragma once

#include <cstdint>

namespace torchtpu {

/// The hash of what came before, with one word more. Multiplies by 2 to the 64th over the golden
/// ratio (Fibonacci hashing, Knuth, TAOCP 3, 6.4) and folds the well mixed upper half down.
inline uint64_t mixed(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 32);
}

}  // namespace torchtpu
