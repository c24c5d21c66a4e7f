// SPDX-License-Identifier: Apache-2.0
#include "journal.h"

#include "mixed.h"
#include "program.h"
#include "trace.h"

#include <algorithm>

namespace torchtpu {
namespace {

constexpr size_t kMaxStreams = 4096;  // remembered; then all are forgotten
constexpr uint32_t kWorthDeferring = 2;  // programs of ops that were missing
constexpr uint32_t kOwnPrograms = 2;     // sizes of a stream that are worth a program each at once
// Sightings of others, which run at padded sizes till then. Sizes that drift would have programs
// compiled for ever: after the first few each takes so many sightings more.
constexpr uint32_t kOftenEnough = 8;
constexpr uint32_t kCheapPrograms = 8;
// A stream is regular if one of so many is it and they come in an order; then it is worth a program at
// once. Others take more sightings, and credit.
constexpr uint64_t kRegular = 8;
constexpr uint64_t kRegularAtOnce = 4;  // at its second sighting
constexpr size_t kFewStreams = 16;      // that are known; among more, a second sighting may be chance
constexpr uint32_t kIrregularSightings = 4;
constexpr uint32_t kSightingsByChance = 16;  // where streams come in no order
constexpr uint32_t kLongestPause = 7;

// Of the rolling hash of recent calls: an odd number, and its kRecent-th power (2 to the 5th).
constexpr uint64_t kBase = 0x9E3779B97F4A7C15ull;
constexpr uint64_t squared(uint64_t base, int times) {
  return times == 0 ? base : squared(base * base, times - 1);
}
constexpr uint64_t kBaseToRecent = squared(kBase, 5);

uint64_t hash_of_line(const UserLine& line) {
  return reinterpret_cast<uint64_t>(line.code) ^ static_cast<uint64_t>(line.instruction);
}

}  // namespace

FusionPolicy& fusion_policy() {
  static auto* policy = new FusionPolicy();
  return *policy;
}

void Journal::note(Node& node) {
  uint64_t epoch = this->epoch();
  uint64_t shape = mixed(0, static_cast<uint64_t>(node.signature->id));
  for (NodeInput& input : node.inputs) {
    if (!input.value) {
      continue;
    }
    Value& value = *input.value;
    if (value.epoch != epoch) {  // its first use in this stream
      value.epoch = epoch;
      value.place = kFromOutside | externals_++;
      operand_bytes_ += value.geometry->nbytes;
    }
    if ((value.place & kFromOutside) != 0) {
      shape = mixed(shape, ~static_cast<uint64_t>(value.geometry->id));
      hash_ = mixed(hash_, value.place);
    } else {
      shape = mixed(shape, (static_cast<uint64_t>(length_) << 16) - value.place);
    }
    shape = mixed(shape, static_cast<uint64_t>(input.plan.kind));
  }
  uint32_t index = 0;
  for (NodeOutput& output : node.outputs) {
    output.value->epoch = epoch;
    output.value->place = (static_cast<uint64_t>(length_) << 16) | index++;
  }
  ++length_;
  uint64_t call = mixed(mixed(0, reinterpret_cast<uint64_t>(node.signature->op)), hash_of_line(node.line));
  site_ = mixed(site_, call);
  uint64_t& oldest = calls_[next_call_++ % kRecent];
  recent_ = recent_ * kBase + call - oldest * kBaseToRecent;
  oldest = call;
  node.site = site_;
  node.recent = recent_;
  hash_ = mixed(hash_, shape);
  loops_.note(shape);
  rounds_.note(call, node.in_backward);
  if (immediate()) {
    pieces_.note(node);
  }
}

void Journal::forget_streams() {
  streams_.clear();
  kin_.clear();
  order_.reset();
}

SeenStream& Journal::seen() {
  if (streams_.size() > kMaxStreams) {
    forget_streams();
  }
  return streams_[mixed(hash_, length_)];
}

bool Journal::is_regular(const SeenStream& stream) const {
  uint64_t age = epoch() - stream.first;
  if (stream.count < 2) {
    bool in_turn = age == 1 || (age <= kRegularAtOnce && order_.foretold() == &stream);
    return stream.count == 1 && in_turn && streams_.size() <= kFewStreams;
  }
  return age <= kRegular * stream.count && order_.holds(stream);
}

bool Journal::is_worth_one(const SeenStream& stream) {
  uint32_t wanted = fusion_policy().sightings.load(std::memory_order_relaxed);
  bool at_once = wanted == 0 || stream.requested || is_regular(stream);
  if (stream.varies) {
    uint32_t had = stream.requested ? 0 : kin_[site_].programs;
    uint32_t factor = had < kCheapPrograms ? 1 : had - kCheapPrograms + 2;
    wanted = std::max(wanted, kOftenEnough) * factor;
  }
  if (!at_once) {
    wanted = std::max(wanted, order_.holds(stream) ? kIrregularSightings : kSightingsByChance);
  }
  return stream.count >= wanted && (at_once || credit_.is_left());
}

bool Journal::varies(const SeenStream& stream) {
  return stream.varies || (stream.count == 0 && kin_[site_].sizes >= kOwnPrograms);
}

bool Journal::varies() { return varies(seen()); }

bool Journal::is_first_at(const UserLine& line) {
  SeenStream& stream = seen();
  if (stream.count > 0 || varies(stream)) {
    return false;
  }
  return first_sights_.is_first_at(hash_of_line(line)) || kin_[site_].sizes > 0;
}

bool Journal::repeats() { return is_worth_one(seen()); }

bool Journal::may_have_program() {
  SeenStream& stream = seen();
  bool is_new = !varies(stream) && !stream.looked_up;
  stream.looked_up = true;
  return is_new || is_worth_one(stream);
}

void Journal::asked() {
  ++kin_[site_].programs;
  credit_.spend(length_);
}

void Journal::hit() {
  misses_ = 0;
  credit_.earn(length_);
}

void Journal::miss(std::shared_ptr<Program> program, bool built, uint32_t in_pieces) {
  bool pays = built || 2 * in_pieces >= length_;
  misses_ += pays ? 0 : 1;
  pause_ = pays ? 0 : pause_;
  if (program) {
    seen().requested = std::move(program);
    immediate_ = true;  // as Strict does, until it is compiled
  } else if (misses_ >= fusion_policy().patience.load(std::memory_order_relaxed)) {
    immediate_ = true;
    if (varies()) {
      pause_ = std::min(2 * pause_ + 1, kLongestPause);
      paused_ = 0;
    }
  }
}

SeenStream& Journal::expected_after(SeenStream& stream) {
  order_.note(stream, stream.varies ? site_ : mixed(hash_, length_));
  SeenStream* foretold = order_.foretold();
  bool is_told = foretold != nullptr && !stream.varies && !foretold->varies;
  return is_told ? *foretold : stream;
}

void Journal::end(FlushReason reason) {
  bool with_piece = reason == FlushReason::kLoop;
  rounds_.end(reason == FlushReason::kBackward);
  if (length_ == 0) {
    return;
  }
  SeenStream& stream = seen();
  if (stream.count == 0) {
    stream.varies = ++kin_[site_].sizes > kOwnPrograms;
    stream.first = epoch();
  }
  SeenStream& next = expected_after(stream);
  bool is_new = !next.varies && !next.looked_up;
  bool known = next.count > 0 && (is_new || is_worth_one(next));
  bool compiling = next.requested && !next.requested->ready();
  ++stream.count;
  if (immediate_ && !known && !with_piece) {
    loops_.learn();
  }
  bool in_pieces = pieces_.end() && stream.varies && ++paused_ > pause_;
  // Defer the next stream if it will probably be one that was seen, if much of it is in pieces, or if
  // ops of new sizes had to be compiled one after the other: deferred ones are compiled side by side.
  bool again = known || built_alone_ >= kWorthDeferring;
  if (immediate_ && !compiling && (again || in_pieces)) {
    immediate_ = false;
    misses_ = again ? 0 : std::max(misses_ - 1, 0);
  }
  built_alone_ = 0;
  loops_.end(with_piece, hash_);
  ++epoch_;
  hash_ = 0;
  site_ = 0;
  length_ = 0;
  externals_ = 0;
  operand_bytes_ = 0;
}

void Journal::reset() {
  forget_streams();
  credit_ = Credit();
  first_sights_ = FirstSights();
  immediate_ = false;
  misses_ = 0;
  pause_ = paused_ = 0;
  loops_.reset();
  rounds_.reset();
  pieces_.reset();
}

}  // namespace torchtpu
