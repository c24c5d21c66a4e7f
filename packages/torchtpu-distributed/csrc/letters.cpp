// SPDX-License-Identifier: Apache-2.0
#include "letters.h"

namespace torchtpu::distributed {
namespace {

// How a letter begins: which end of which message it is about.
std::string letter_key(bool sends, int peer, int tag, uint64_t number) {
  return (sends ? "to " : "from ") + std::to_string(peer) + " " + std::to_string(tag) + " " +
         std::to_string(number) + "\n";
}

}  // namespace

std::optional<std::string> Letters::compare(bool sends, int peer, int tag, const std::string& what,
                                            const std::string& line) {
  if (!sends) {
    named_.insert(tag);
    if (expected_.contains(tag)) {
      unordered_.insert(tag);
    }
    if (unordered_.contains(tag)) {
      return std::nullopt;
    }
  }
  uint64_t number = ++numbers_[{sends, peer, tag}];
  box_->put(++written_, letter_key(sends, peer, tag, number) + what + "\n" + line);
  return other(sends, peer, tag, number, what);
}

void Letters::expect(int tag) {
  if (++expected_[tag] > 1 || named_.contains(tag)) {
    unordered_.insert(tag);
  }
}

std::optional<std::string> Letters::compare_arrived(int source, int tag, const std::string& what) {
  --expected_[tag];
  return unordered_.contains(tag) ? std::nullopt
                                  : other(false, source, tag, ++numbers_[{false, source, tag}], what);
}

std::optional<std::string> Letters::other(bool sends, int peer, int tag, uint64_t number, const std::string& what) {
  std::string key = letter_key(!sends, rank_, tag, number);
  std::optional<std::string> said = box_->letter(peer, key);
  if (!said || said->substr(key.size()).starts_with(what + "\n")) {
    return std::nullopt;
  }
  return said->substr(key.size());
}

}  // namespace torchtpu::distributed
