// SPDX-License-Identifier: Apache-2.0
// What a fluid simulation is given: flows on links, in rounds of lanes. Needs neither torch
// nor Python. Times are whole picoseconds, rates bytes per picosecond.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace torchtpu::fluid {

using Time = int64_t;
using Number = uint32_t;
constexpr Time kNever = std::numeric_limits<Time>::max();

// A flow's use of a link.
struct Crossing {
  Number link;
  float weight;  // how many times it crosses
};

// Where one flow of a round goes. It may stand for several that see the same. Its first target
// and crossing are here as well: memory that is not looked up is time not spent.
struct Way {
  Time latency;               // from the last byte sent to the last received
  const Crossing* crossings;  // of the pattern
  Number links;               // how many those are
  Number flow;                // its number in the columns
  Number first_target, targets;
  Number target;      // the first
  Crossing crossing;  // the first
};

// Who sends to whom over which links; rounds that differ in sizes only share it.
struct Pattern {
  std::vector<Way> ways;               // in the order of the places that send
  std::vector<Number> first_at_place;  // [places + 1] into `ways`
  std::vector<Number> targets;
  std::vector<Crossing> crossings;
  std::vector<int32_t> ends_at_place;  // [places] flows that it sends or receives
  bool one_each = false;               // whether every place sends one

  Number first(Number place) const { return one_each ? place : first_at_place[place]; }
};

// The columns of a pattern: flows, the places that receive them, the links that they cross;
// the latter two in the order of the flows.
struct Columns {
  std::span<const int64_t> source, latency;               // [n]
  std::span<const int64_t> target_flow, target;           // [T]
  std::span<const int64_t> pair_flow, pair_link;          // [H]
  std::span<const double> pair_weight;                    // [H]
};
Pattern pattern_of(const Columns& columns, size_t places);

struct Round {
  Number pattern;
  std::span<const double> sizes;  // [n] bytes
  bool alike;                     // whether all are the same

  double size(Number flow) const { return sizes[alike ? 0 : flow]; }
};

struct Problem {
  std::span<const double> capacity;        // [links]
  std::vector<Pattern> patterns;
  std::vector<Round> rounds;               // the different ones
  std::vector<std::vector<Number>> lanes;  // rounds of each lane, in order
  std::span<const int64_t> start;          // [places] when each begins
};

struct Outcome {
  std::vector<Time> lane_end;
  int64_t events = 0;   // points in time
  bool shared = false;  // whether two flows ever shared a link
};

// Runs a problem to its end. Throws std::runtime_error if a flow can never end.
Outcome run(const Problem& problem);

}  // namespace torchtpu::fluid
