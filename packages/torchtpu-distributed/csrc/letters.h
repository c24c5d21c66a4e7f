// SPDX-License-Identifier: Apache-2.0
// What the two ends of a message say of it, for each to compare with the other's: gloo fills part
// of a tensor with a message that is shorter, and moves bytes whatever the dtypes are.
#pragma once

#include "mailbox.h"

#include <map>
#include <set>
#include <tuple>

namespace torchtpu::distributed {

// Of one group, whose ranks share `box`. Messages of a tag between two ranks are numbered in the
// order of their calls at both ends. All methods: the GIL is held.
class Letters {
 public:
  Letters(std::shared_ptr<Mailbox> box, int rank) : box_(std::move(box)), rank_(rank) {}

  // Says what this end is and looks for what the other one has said. None if that says the same, or
  // nothing yet; else what it says, its line after the end of a line.
  std::optional<std::string> compare(bool sends, int peer, int tag, const std::string& what, const std::string& line);

  // A receive from any rank, which compares when it has come. Where the order of several is not
  // known, those of the tag are not compared any more.
  void expect(int tag);
  std::optional<std::string> compare_arrived(int source, int tag, const std::string& what);

 private:
  std::optional<std::string> other(bool sends, int peer, int tag, uint64_t number, const std::string& what);

  std::shared_ptr<Mailbox> box_;
  const int rank_;
  uint64_t written_ = 0;
  std::map<std::tuple<bool, int, int>, uint64_t> numbers_;  // sent or received, by peer and tag
  std::map<int, int> expected_;                             // from any rank and not here yet, by tag
  std::set<int> named_;                                     // tags that were received from one rank
  std::set<int> unordered_;
};

}  // namespace torchtpu::distributed
