// SPDX-License-Identifier: Apache-2.0
#include "journal.h"

#include "program.h"
#include "trace.h"

namespace torchtpu {
namespace {

constexpr size_t kMaxStreams = 4096;  // remembered; then all are forgotten
constexpr uint32_t kWorthDeferring = 2;  // programs of ops that were missing

uint64_t mixed(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 32);
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
  hash_ = mixed(hash_, shape);
  loops_.note(shape);
}

SeenStream& Journal::seen() {
  if (streams_.size() > kMaxStreams) {
    streams_.clear();
  }
  return streams_[mixed(hash_, length_)];
}

bool Journal::repeats() {
  return static_cast<int>(seen().count) >= fusion_policy().sightings.load(std::memory_order_relaxed);
}

void Journal::miss(std::shared_ptr<Program> program, bool built) {
  misses_ += built ? 0 : 1;
  if (program) {
    seen().requested = std::move(program);
    immediate_ = true;  // as Strict does, until it is compiled
  } else if (misses_ >= fusion_policy().patience.load(std::memory_order_relaxed)) {
    immediate_ = true;
  }
}

void Journal::end(bool with_piece) {
  if (length_ == 0) {
    return;
  }
  SeenStream& stream = seen();
  bool known = stream.count > 0;
  bool compiling = stream.requested && !stream.requested->ready();
  ++stream.count;
  if (immediate_ && !known && !with_piece) {
    loops_.learn();
  }
  // Defer the next stream if it will probably be this one again, or if ops of new sizes had to
  // be compiled one after the other: deferred ones are compiled side by side.
  if (immediate_ && !compiling && (known || built_alone_ >= kWorthDeferring)) {
    immediate_ = false;
    misses_ = 0;
  }
  built_alone_ = 0;
  loops_.end(with_piece, hash_);
  ++epoch_;
  hash_ = 0;
  length_ = 0;
  externals_ = 0;
  operand_bytes_ = 0;
}

void Journal::reset() {
  streams_.clear();
  immediate_ = false;
  misses_ = 0;
  loops_.reset();
}

}  // namespace torchtpu
