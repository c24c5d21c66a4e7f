// SPDX-License-Identifier: Apache-2.0
// Loops in a stream of ops: a body that repeats, found by structure, so that it becomes
// a program of its own however often the script goes round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace torchtpu {

class Loops {
 public:
  // Adds an op by the hash of what it is and how far back its operands were made.
  void note(uint64_t shape);
  // Whether a piece of a known loop ends after the op that was noted last.
  bool piece_ends();
  // Looks for a loop in the stream so far and remembers it.
  void learn();
  // Whether the stream is in the middle of a known loop.
  bool going_round() const;
  // The stream ends; `hash` is its hash. Pieces go on while they are alike.
  void end(bool with_piece, uint64_t hash);
  void reset();

 private:
  struct Known {
    size_t period;
    uint64_t sum;     // of the shapes of one round, wherever it starts
    size_t piece;     // ops of a piece: some rounds
    size_t run = 0;   // ops in a row that equal the op one period before
  };

  uint64_t sum_of_last(size_t count) const;

  std::vector<uint64_t> shapes_;
  std::vector<uint64_t> sums_;  // of all shapes up to here
  std::vector<Known> known_;
  size_t piece_ = 0;            // ops in a piece of the loop that is going round; 0: none
  uint64_t piece_hash_ = 0;
  int unlike_ = 0;              // pieces in a row that were not like the one before
};

}  // namespace torchtpu
