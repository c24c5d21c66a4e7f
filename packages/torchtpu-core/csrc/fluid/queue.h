// SPDX-License-Identifier: Apache-2.0
// What happens next: events by time, all of one time together.
//
// A radix heap (Ahuja, Mehlhorn, Orlin and Tarjan, Faster Algorithms for the Shortest Path
// Problem, 1990): time never goes back, so an event waits in the bucket of the highest bit in
// which its time differs from now. Events at the same time, which symmetry makes many, cost no
// comparison.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "flows.h"

namespace torchtpu::fluid {

enum class Kind : uint8_t { kBegins, kSent, kArrived, kArrivedAtSeveral };

struct Event {
  Time time;
  Number what;   // a place that begins or receives, a flow, or a way to several places
  Number place;  // that begins, sends or receives
  Number where;  // round within the lane, of an arrival; link, of a flow that is sent
  uint16_t lane;
  Kind kind;
};

class Queue {
 public:
  // `event` is not earlier than what was taken last.
  void add(const Event& event) { buckets_[bucket_of(event.time)].push_back(event); }

  // Replaces `events` by all events of the earliest time; false if there are none. `soon` is told
  // of events shortly before their time comes.
  template <typename Soon>
  bool take(std::vector<Event>& events, Soon soon);

 private:
  static constexpr size_t kSoon = 256;  // as many events before
  size_t bucket_of(Time time) const {
    return std::bit_width(static_cast<uint64_t>(time ^ now_));
  }

  Time now_ = 0;
  std::array<std::vector<Event>, 65> buckets_;
};

template <typename Soon>
bool Queue::take(std::vector<Event>& events, Soon soon) {
  events.clear();
  auto bucket = std::find_if(buckets_.begin(), buckets_.end(),
                             [](const auto& waiting) { return !waiting.empty(); });
  if (bucket == buckets_.end()) {
    return false;
  }
  if (bucket != buckets_.begin()) {
    auto earlier = [](const Event& one, const Event& other) { return one.time < other.time; };
    now_ = std::min_element(bucket->begin(), bucket->end(), earlier)->time;
    for (const Event& event : *bucket) {
      if (bucket->size() < kSoon) {
        soon(event);
      }
      buckets_[bucket_of(event.time)].push_back(event);
    }
    bucket->clear();
  }
  events.swap(buckets_.front());
  return true;
}

}  // namespace torchtpu::fluid
