// SPDX-License-Identifier: Apache-2.0
#include "flows.h"

#include <numeric>

namespace torchtpu::fluid {

namespace {

// Where the entries of each flow begin in a column of flow numbers in ascending order.
std::vector<Number> firsts(std::span<const int64_t> flow_of, size_t flows) {
  std::vector<Number> first(flows + 1, 0);
  for (int64_t flow : flow_of) {
    ++first[flow + 1];
  }
  std::partial_sum(first.begin(), first.end(), first.begin());
  return first;
}

}  // namespace

Pattern pattern_of(const Columns& columns, size_t places) {
  size_t flows = columns.source.size();
  Pattern made;
  made.first_at_place = firsts(columns.source, places);
  made.ends_at_place.assign(places, 0);
  for (int64_t place : columns.source) {
    ++made.ends_at_place[place];
  }
  for (int64_t place : columns.target) {
    ++made.ends_at_place[place];
    made.targets.push_back(static_cast<Number>(place));
  }
  for (size_t pair = 0; pair < columns.pair_link.size(); ++pair) {
    made.crossings.push_back({static_cast<Number>(columns.pair_link[pair]),
                              static_cast<float>(columns.pair_weight[pair])});
  }
  std::vector<Number> target = firsts(columns.target_flow, flows);
  std::vector<Number> crossing = firsts(columns.pair_flow, flows);
  made.ways.resize(flows);
  std::vector<Number> next(made.first_at_place.begin(), made.first_at_place.end() - 1);
  for (Number flow = 0; flow < flows; ++flow) {
    Way& way = made.ways[next[columns.source[flow]]++];
    const Crossing* crossings = made.crossings.data() + crossing[flow];
    way = {columns.latency[flow],     crossings,
           crossing[flow + 1] - crossing[flow], flow,
           target[flow],              target[flow + 1] - target[flow],
           made.targets[target[flow]], *crossings};
  }
  made.one_each = flows == places;
  for (size_t place = 0; place < places; ++place) {
    made.one_each &= made.first_at_place[place] == place;
  }
  return made;
}

}  // namespace torchtpu::fluid
