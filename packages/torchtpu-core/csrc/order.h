// SPDX-License-Identifier: Apache-2.0
// In which order the streams of a script come: which will come next.
//
// A stream is foretold by what followed the last time after the same streams before it, as many as
// are known up to eight: layers of the same form that are computed again in a backward pass are equal
// streams in a row, and only the first of them tell where the row ends.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace torchtpu {

struct SeenStream;

class Order {
 public:
  // A stream ended. Streams that differ in sizes only have one name.
  void note(SeenStream& stream, uint64_t name);
  // The one that will probably come next; null: that is unknown.
  SeenStream* foretold() const { return foretold_; }
  // Whether at least half of the streams that were foretold lately have come, if this one is next.
  bool holds(const SeenStream& next) const;
  void reset() { *this = Order(); }

 private:
  static constexpr size_t kLongest = 8;

  // What is known of those that were foretold, once the next stream has come.
  uint8_t came_with(const SeenStream& next) const;
  int told_with_next() const;
  // A name of the last streams.
  uint64_t recent(size_t count) const;

  std::array<uint64_t, kLongest> names_{};  // of the last streams, the last one first
  std::unordered_map<uint64_t, SeenStream*> followed_;  // what came last, by the streams before it
  SeenStream* foretold_ = nullptr;
  uint8_t came_ = 0;  // of those that were foretold lately, up to eight: a bit for each that came
  int told_ = 0;      // how many those are
};

}  // namespace torchtpu
