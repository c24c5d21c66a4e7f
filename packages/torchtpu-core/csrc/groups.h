// SPDX-License-Identifier: Apache-2.0
// Groups of ops in streams that differ in sizes: ops in a row whose sizes vary together, such as
// those of an expert that gets another number of rows each time. A group runs as one program at
// padded sizes. Which ops make one is learned in Python, from the sizes of a few times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torchtpu {

struct Node;

class Groups {
 public:
  // (first op, number of ops) of groups.
  using Spans = std::vector<std::pair<size_t, size_t>>;

  // How many ops from the first one on make a group; 0: it begins none.
  size_t length(std::span<const Node> nodes) const;
  // Of a group that begins with this op.
  size_t length_at(const Node& first) const;
  // Whether the sizes of these ops should be noted once more to find the groups among them.
  bool wants_to_know(std::span<const Node> nodes);
  // The groups among `nodes`. Later ones replace what begins there.
  void learn(std::span<const Node> nodes, const Spans& found);
  // These ops are no group, but have those among them.
  void replace(std::span<const Node> group, const Spans& found);
  // Whether an op may be in a group at all.
  static bool may_join(const Node& node);

 private:
  struct Group {
    uint64_t last = 0;  // the site of its last op
    size_t length = 0;
  };

  std::unordered_map<uint64_t, Group> groups_;     // by the site of the first op
  std::unordered_map<uint64_t, uint32_t> asked_;  // by the sites of the first and the last op
};

}  // namespace torchtpu
