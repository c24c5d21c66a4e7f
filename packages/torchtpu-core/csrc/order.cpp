// SPDX-License-Identifier: Apache-2.0
#include "order.h"

#include "journal.h"
#include "mixed.h"

#include <algorithm>
#include <bit>

namespace torchtpu {
namespace {

constexpr size_t kStreamsBefore[] = {8, 4, 2, 1};  // of streams that foretell one
constexpr size_t kMostForetold = 1 << 14;  // then all are forgotten

}  // namespace

uint64_t Order::recent(size_t count) const {
  uint64_t name = count;
  for (size_t i = 0; i < count; ++i) {
    name = mixed(name, names_[i]);
  }
  return name;
}

void Order::note(SeenStream& stream, uint64_t name) {
  if (followed_.size() > kMostForetold) {
    followed_.clear();
  }
  came_ = came_with(stream);
  told_ = told_with_next();
  for (size_t count : kStreamsBefore) {
    followed_[recent(count)] = &stream;
  }
  std::copy_backward(names_.begin(), names_.end() - 1, names_.end());
  names_[0] = name;
  foretold_ = nullptr;
  for (size_t count : kStreamsBefore) {
    auto it = followed_.find(recent(count));
    if (it != followed_.end()) {
      foretold_ = it->second;
      return;
    }
  }
}

uint8_t Order::came_with(const SeenStream& next) const {
  return foretold_ == nullptr ? came_ : static_cast<uint8_t>((came_ << 1) | (foretold_ == &next ? 1 : 0));
}

int Order::told_with_next() const { return foretold_ == nullptr ? told_ : std::min(told_ + 1, 8); }

bool Order::holds(const SeenStream& next) const {
  return 2 * std::popcount(came_with(next)) >= told_with_next();
}

}  // namespace torchtpu
