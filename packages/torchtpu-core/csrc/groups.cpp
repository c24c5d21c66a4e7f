// SPDX-License-Identifier: Apache-2.0
#include "groups.h"

#include "mixed.h"
#include "trace.h"

#include <algorithm>

namespace torchtpu {
namespace {

constexpr uint32_t kTimesAsked = 6;  // sizes noted of ops in a row; see runtime/groups.py
constexpr size_t kLeastGroup = 3;    // likewise
constexpr size_t kMostGroups = 1 << 14;  // or rows of ops asked about; then all are forgotten

}  // namespace

size_t Groups::length(std::span<const Node> nodes) const {
  auto it = groups_.find(nodes[0].site);
  if (it == groups_.end() || it->second.length > nodes.size() ||
      nodes[it->second.length - 1].site != it->second.last) {
    return 0;
  }
  return it->second.length;
}

size_t Groups::length_at(const Node& first) const {
  auto it = groups_.find(first.site);
  return it == groups_.end() ? 0 : it->second.length;
}

bool Groups::wants_to_know(std::span<const Node> nodes) {
  if (nodes.size() < kLeastGroup) {
    return false;
  }
  if (asked_.size() > kMostGroups) {
    asked_.clear();
  }
  return asked_[mixed(nodes.front().site, nodes.back().site)]++ < kTimesAsked;
}

void Groups::learn(std::span<const Node> nodes, const Spans& found) {
  if (groups_.size() > kMostGroups) {
    groups_.clear();
  }
  for (const auto& [first, length] : found) {
    groups_[nodes[first].site] = {nodes[first + length - 1].site, length};
  }
}

void Groups::replace(std::span<const Node> group, const Spans& found) {
  groups_.erase(group.front().site);
  learn(group, found);
}

bool Groups::may_join(const Node& node) {
  const OpInfo& op = *node.signature->op;
  return op.handle != nullptr && !op.random && !op.alone && node.site != 0 &&
         std::none_of(node.outputs.begin(), node.outputs.end(),
                      [](const NodeOutput& output) { return output.is_update; });
}

}  // namespace torchtpu
