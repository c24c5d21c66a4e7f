// SPDX-License-Identifier: Apache-2.0
// The ops that programs of short new streams were built for, and whether such programs pay.
//
// One program for a stream takes XLA a fraction of the time of one for each of its ops. But where no
// stream ever comes back, as in a script of random choices, its ops come in others and get programs of their
// own after all: then both were compiled.
#pragma once

#include <cstdint>
#include <unordered_set>

namespace torchtpu {

class FirstSights {
 public:
  // Whether they pay: few of their ops came in other streams.
  bool pay() const { return kOften * again_ <= seen_ + kAtFirst; }

  bool has(uint64_t op) const { return ops_.count(op) != 0; }
  void add(uint64_t op) {
    if (ops_.size() > kMost) {
      ops_.clear();
    }
    ops_.insert(op);
    ++seen_;
  }
  // So many of them came again.
  void came_again(uint64_t count) { again_ += count; }

 private:
  static constexpr uint64_t kOften = 4;     // one op of so many
  static constexpr uint64_t kAtFirst = 8;   // the first few tell little
  static constexpr size_t kMost = 1 << 16;  // remembered; then all are forgotten

  std::unordered_set<uint64_t> ops_;  // by hash
  uint64_t seen_ = 0;
  uint64_t again_ = 0;
};

}  // namespace torchtpu
