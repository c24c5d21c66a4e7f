// SPDX-License-Identifier: Apache-2.0
#include "rounds.h"

#include <algorithm>

namespace torchtpu {
namespace {

constexpr int kLeastRounds = 3;   // two are, for example, a discriminator's losses
constexpr uint32_t kLeastOps = 32;  // shorter ones are better off together, as loops
constexpr int kForgotten = 16;    // steps of one round

}  // namespace

bool Rounds::is_head(uint64_t call) const {
  return std::find(heads_.begin(), heads_.begin() + count_, call) != heads_.begin() + count_;
}

void Rounds::note(uint64_t call, bool in_backward) {
  ++ops_;
  if (in_backward) {
    passed_ = true;
  } else if (passed_ && is_head(call)) {
    rounds_ = ops_ > kLeastOps ? rounds_ + 1 : 1;
    known_ = known_ || rounds_ >= kLeastRounds;
    passed_ = false;
    ops_ = 1;
  } else if (!passed_ && rounds_ == 1 && count_ < kHeads) {
    heads_[count_++] = call;
  }
}

void Rounds::end(bool after_backward) {
  count_ = 0;
  passed_ = false;
  ops_ = 0;
  rounds_ = 1;
  if (after_backward) {
    ++cuts_;
    return;
  }
  single_ = cuts_ == 1 ? single_ + 1 : cuts_ > 1 ? 0 : single_;
  cuts_ = 0;
  if (single_ == kForgotten) {
    reset();
  }
}

}  // namespace torchtpu
