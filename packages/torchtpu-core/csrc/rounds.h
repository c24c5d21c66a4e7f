// SPDX-License-Identifier: Apache-2.0
// Forward and backward passes that come several times between two boundaries, as where gradients are
// accumulated. Each becomes a stream of its own, so that any number of them share one program: after a
// backward pass little is alive but gradients, and a program of all of them takes as many times longer
// to compile.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace torchtpu {

class Rounds {
 public:
  // Adds an op of the stream: its call, and whether a backward pass records it.
  void note(uint64_t call, bool in_backward);
  // Whether the stream ends before an op that comes now.
  bool end_before(bool in_backward) const { return known_ && passed_ && !in_backward; }
  // The stream ends, for that reason or another.
  void end(bool after_backward);
  void reset() { *this = Rounds(); }

 private:
  static constexpr size_t kHeads = 32;

  bool is_head(uint64_t call) const;

  std::array<uint64_t, kHeads> heads_;  // the first calls of the stream, up to its first backward pass
  size_t count_ = 0;
  bool passed_ = false;   // a backward pass, and no round has begun since
  uint32_t ops_ = 0;      // of this round
  int rounds_ = 1;        // of this stream
  bool known_ = false;    // the script goes round
  int cuts_ = 0;          // after backward passes, since the last other boundary
  int single_ = 0;        // boundaries in a row that had one
};

}  // namespace torchtpu
