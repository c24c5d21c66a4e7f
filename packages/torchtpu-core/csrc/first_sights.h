// SPDX-License-Identifier: Apache-2.0
// Which short new streams are worth a program of their own when they are first met.
//
// One program for a stream takes XLA a fraction of the time of one for each of its ops. But where streams of
// ever other calls end at one line, as in a script of random choices, none comes back, and their ops are
// met in others and get programs of their own after all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_set>

namespace torchtpu {

class FirstSights {
 public:
  // Notes that a new stream ends at a line; whether it is the first.
  bool is_first_at(uint64_t line) { return noted(lines_, line); }
  // Whether a program was made for a stream with this op.
  bool has(uint64_t op) const { return ops_.count(op) != 0; }
  void add(uint64_t op) { noted(ops_, op); }

 private:
  using Hashes = std::unordered_set<uint64_t>;
  static constexpr size_t kMost = 1 << 16;  // remembered; then all are forgotten

  static bool noted(Hashes& known, uint64_t hash) {
    if (known.size() > kMost) {
      known.clear();
    }
    return known.insert(hash).second;
  }

  Hashes lines_;
  Hashes ops_;
};

}  // namespace torchtpu
