// SPDX-License-Identifier: Apache-2.0
// Pieces of streams that differ in sizes: runs of ops that are the same whenever the script
// comes by, between ops that are not. A decoding loop with a growing cache is such a stream:
// all of a layer but its attention repeats.
#pragma once

#include "groups.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace torchtpu {

struct Node;

class Pieces {
 public:
  // Notes an op of the present stream.
  void note(const Node& node);
  // The stream ends: whether at least half of its ops were in pieces.
  bool end();
  // How many ops from the first one on make a piece; 0: it is in none.
  size_t length(std::span<const Node> nodes) const;
  // Notes that a piece is about to run; whether it did so before and is worth a program.
  bool is_known(std::span<const Node> piece);
  // Whether one more program may be asked for to run a piece: a few differ in which results live on.
  bool may_request(std::span<const Node> piece);
  // Groups of ops of sizes that vary together, which count as pieces.
  Groups& groups() { return groups_; }
  void reset() { *this = Pieces(); }

 private:
  struct Site {
    uint64_t name = 0;   // that of its nodes
    uint64_t form = 0;   // the op and the geometry of its operands
    uint32_t times = 0;  // in a row
    uint32_t requests = 0;  // of programs for pieces it is in; each took twice as many times
  };
  struct Met {
    uint32_t times = 0;
    uint32_t requests = 0;
  };

  // The site of a node. A new one takes the place of one of two that came less often.
  Site& site_of(const Node& node);
  bool is_steady(const Node& node) const;

  Groups groups_;
  // Two sites to a place. Of fixed size: a script that never repeats has a new site for each op.
  std::vector<std::array<Site, 2>> places_;
  std::unordered_map<uint64_t, Met> met_;  // by hash of the forms
  uint32_t steady_run_ = 0;  // ops in a row up to the last one
  uint32_t covered_ = 0;     // ops of the present stream in pieces
  uint32_t length_ = 0;
};

}  // namespace torchtpu
