// SPDX-License-Identifier: Apache-2.0
// The canonical form of a trace: a key that equal work shares, and the operands in
// the order the key implies.
#pragma once

#include "trace.h"

#include <unordered_map>

namespace torchtpu {

// What the nodes are and how they are connected; not which results are live.
struct TraceKey {
  std::vector<int64_t> words;
  uint64_t hash = 0;
  bool operator==(const TraceKey& other) const { return words == other.words; }
};
struct TraceKeyHash {
  size_t operator()(const TraceKey& key) const { return key.hash; }
};

// Which results a program hands out and whose memory they take.
struct Liveness {
  std::vector<uint8_t> live;                  // per output of all nodes
  std::vector<std::pair<int, int>> donated;   // operand, index among the live outputs
  bool operator==(const Liveness&) const = default;
};

struct TraceLayout {
  TraceKey key;
  c10::SmallVector<ValuePtr, 8> operands;      // distinct concrete values, in first use order
  c10::SmallVector<bool, 8> donatable;         // per operand: dies in this run
  c10::SmallVector<ScalarWords, 8> scalars;    // of all nodes: view starts, then arguments, in order
  c10::SmallVector<NodeOutput*, 8> live;       // outputs that are handed out
  Liveness liveness;
};

// One op alone hands out all its results, and takes the memory of what it replaces,
// whether Strict runs it or Fused: the same program serves both. In a longer trace the
// results that nobody holds are not handed out.
TraceLayout lay_out(Trace& trace);

// References to values that are gone when an op runs: those of the ops up to it.
using Holders = std::unordered_map<const Value*, uint32_t>;
// The layout that one op of a longer trace will have when its turn comes to run alone.
TraceLayout lay_out_ahead(Trace& trace, const Holders& holders);

// True if only `holders` references to an operand are left, and its memory is worth giving away.
bool is_donatable(const ValuePtr& operand, uint32_t holders);

// Makes the layout hand out and donate what `liveness` says: more results than needed.
void adopt(Trace& trace, TraceLayout& layout, const Liveness& liveness);

// What torchtpu_core.runtime.programs needs to build the program. The GIL is held.
py::object describe_trace(const Trace& trace, const TraceLayout& layout);
py::tuple describe_geometry(const Geometry* geometry);

}  // namespace torchtpu
