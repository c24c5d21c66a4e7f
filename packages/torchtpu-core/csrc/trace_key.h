// SPDX-License-Identifier: Apache-2.0
// The canonical form of a trace: a key that equal work shares, and the operands in
// the order the key implies.
#pragma once

#include "trace.h"

namespace torchtpu {

struct TraceKey {
  std::vector<int64_t> words;
  uint64_t hash = 0;
  bool operator==(const TraceKey& other) const { return words == other.words; }
};
struct TraceKeyHash {
  size_t operator()(const TraceKey& key) const { return key.hash; }
};

struct TraceLayout {
  TraceKey key;
  std::vector<ValuePtr> operands;      // distinct concrete values, in first use order
  std::vector<int> donated;            // indices of operands that die in this run
  std::vector<int> donated_to;         // per donated operand: the live output that takes its place
  std::vector<ScalarWords> scalars;    // of all nodes: view starts, then arguments, in order
  std::vector<NodeOutput*> live;       // outputs somebody still holds
};

TraceLayout lay_out(Trace& trace);

// What torchtpu_core.runtime.programs needs to build the program. The GIL is held.
py::object describe_trace(const Trace& trace, const TraceLayout& layout);
py::tuple describe_geometry(const Geometry* geometry);

}  // namespace torchtpu
