// SPDX-License-Identifier: Apache-2.0
#include "loops.h"

#include <algorithm>
#include <unordered_map>

namespace torchtpu {
namespace {

constexpr size_t kLeastLoop = 64;  // ops that go round
// Rounds of a small body go together, up to so many ops, but a loop has several pieces: as layers
// that are left out by chance, it may be shorter the next time.
constexpr size_t kLongPiece = 64;
constexpr size_t kPiecesOfLoop = 8;
constexpr size_t kMinRounds = 3;   // to call it a loop
constexpr size_t kMaxKnown = 8;

}  // namespace

void Loops::note(uint64_t shape) {
  size_t index = shapes_.size();
  shapes_.push_back(shape);
  sums_.push_back((index == 0 ? 0 : sums_.back()) + shape);
  for (Known& loop : known_) {
    bool again = index >= loop.period && shapes_[index - loop.period] == shape;
    loop.run = again ? loop.run + 1 : 0;
  }
}

uint64_t Loops::sum_of_last(size_t count) const {
  size_t size = sums_.size();
  return sums_.back() - (size > count ? sums_[size - count - 1] : 0);
}

bool Loops::piece_ends() {
  if (piece_ != 0) {
    return shapes_.size() >= piece_;
  }
  for (const Known& loop : known_) {
    if (loop.run >= loop.period && sum_of_last(loop.period) == loop.sum) {
      piece_ = loop.piece;
      piece_hash_ = 0;
      unlike_ = 0;
      return true;
    }
  }
  return false;
}

void Loops::learn() {
  std::unordered_map<uint64_t, size_t> last;
  size_t period = 0, run = 0, best_run = 0, best_period = 0, best_end = 0;
  for (size_t i = 0; i < shapes_.size(); ++i) {
    if (period != 0 && shapes_[i] == shapes_[i - period]) {
      ++run;
    } else {
      auto it = last.find(shapes_[i]);
      period = it == last.end() ? 0 : i - it->second;
      run = period == 0 ? 0 : 1;
    }
    if (period != 0 && run + period >= kMinRounds * period && run > best_run) {
      best_run = run;
      best_period = period;
      best_end = i;
    }
    last[shapes_[i]] = i;
  }
  if (best_run + best_period < kLeastLoop) {
    return;
  }
  uint64_t sum = 0;
  for (size_t i = best_end + 1 - best_period; i <= best_end; ++i) {
    sum += shapes_[i];
  }
  for (const Known& loop : known_) {
    if (loop.period == best_period && loop.sum == sum) {
      return;
    }
  }
  if (known_.size() == kMaxKnown) {
    known_.erase(known_.begin());
  }
  size_t ops = std::min(kLongPiece, (best_run + best_period) / kPiecesOfLoop);
  size_t rounds = (ops + best_period - 1) / best_period;
  size_t going = best_end + 1 == shapes_.size() ? best_run : 0;
  known_.push_back({best_period, sum, rounds * best_period, going});
}

bool Loops::going_round() const {
  return std::any_of(known_.begin(), known_.end(),
                     [](const Known& loop) { return loop.run >= loop.period; });
}

void Loops::end(bool with_piece, uint64_t hash) {
  if (!with_piece) {
    piece_ = 0;
  } else if (hash != piece_hash_) {
    constexpr int kPatience = 3;  // the first rounds read what was made before the loop
    if (++unlike_ > kPatience) {
      piece_ = 0;
    }
    piece_hash_ = hash;
  } else {
    unlike_ = 0;
  }
  shapes_.clear();
  sums_.clear();
  for (Known& loop : known_) {
    loop.run = 0;
  }
}

void Loops::reset() { *this = Loops(); }

}  // namespace torchtpu
