// SPDX-License-Identifier: Apache-2.0
// Whether one more program of a whole stream is likely to pay.
//
// XLA takes as long to compile an op of a large program as some five hundred runs of it save. A script of
// few streams earns that soon. One whose streams seldom come again, such as a translator's pairs of
// lengths, would have programs compiled as long as it runs. So programs cost credit by the number of
// their ops, and earn it whenever they run.
#pragma once

#include <algorithm>
#include <cstdint>

namespace torchtpu {

class Credit {
 public:
  bool is_left() const { return left_ > 0; }
  // A program of so many ops was asked for.
  void spend(uint32_t ops) { left_ -= kRunsToPay * ops; }
  // One ran.
  void earn(uint32_t ops) { left_ = std::min(left_ + ops, kMost); }

 private:
  static constexpr int64_t kRunsToPay = 256;
  static constexpr int64_t kMost = kRunsToPay * 1024;  // for programs of 1,024 ops

  int64_t left_ = kMost;
};

}  // namespace torchtpu
