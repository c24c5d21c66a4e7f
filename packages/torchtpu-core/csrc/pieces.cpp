// SPDX-License-Identifier: Apache-2.0
#include "pieces.h"

#include "mixed.h"
#include "trace.h"

#include <algorithm>

namespace torchtpu {
namespace {

constexpr size_t kLeastPiece = 3;      // ops; a program of fewer saves little
constexpr uint32_t kSteady = 3;       // times in a row that make a site steady
constexpr uint32_t kMostRequests = 3;  // of programs for one piece
constexpr uint32_t kMostDoublings = 16;  // of the times that make a site settled
constexpr size_t kMostKnown = 1 << 16;  // sites, or pieces; then all are forgotten

uint64_t form_of(const Node& node) {
  uint64_t form = mixed(0, static_cast<uint64_t>(node.signature->id));
  for (const NodeInput& input : node.inputs) {
    if (input.value) {
      form = mixed(form, static_cast<uint64_t>(input.value->geometry->id));
      form = mixed(form, static_cast<uint64_t>(input.plan.kind));
    }
  }
  return form;
}

uint64_t hash_of(std::span<const Node> piece) {
  uint64_t hash = piece.size();
  for (const Node& node : piece) {
    hash = mixed(hash, form_of(node));
  }
  return hash;
}

}  // namespace

void Pieces::note(const Node& node) {
  if (sites_.size() > kMostKnown) {
    sites_.clear();
  }
  Site& site = sites_[node.site];
  uint64_t form = form_of(node);
  site.times = site.form == form ? site.times + 1 : 1;
  site.form = form;
  ++length_;
  covered_ += static_cast<uint32_t>(groups_.length_at(node));
  steady_run_ = site.times >= kSteady ? steady_run_ + 1 : 0;
  if (steady_run_ >= kLeastPiece) {
    covered_ += steady_run_ == kLeastPiece ? kLeastPiece : 1;
  }
}

bool Pieces::end() {
  bool pays = length_ > 0 && 2 * covered_ >= length_;
  steady_run_ = covered_ = length_ = 0;
  return pays;
}

bool Pieces::is_steady(const Node& node) const {
  auto it = sites_.find(node.site);
  return it != sites_.end() && it->second.times >= kSteady;
}

size_t Pieces::length(std::span<const Node> nodes) const {
  size_t count = 0;
  while (count < nodes.size() && is_steady(nodes[count])) {
    ++count;
  }
  return count < kLeastPiece ? 0 : count;
}

bool Pieces::is_known(std::span<const Node> piece) {
  if (met_.size() > kMostKnown) {
    met_.clear();
  }
  return ++met_[hash_of(piece)].times > 1;
}

bool Pieces::may_request(std::span<const Node> piece) {
  uint32_t& requests = met_[hash_of(piece)].requests;
  if (requests == 0) {
    auto is_settled = [this](const Node& node) {
      const Site& site = sites_[node.site];
      return site.times >= kSteady << std::min(site.requests, kMostDoublings);
    };
    if (!std::all_of(piece.begin(), piece.end(), is_settled)) {
      return false;
    }
    for (const Node& node : piece) {
      ++sites_[node.site].requests;
    }
  }
  return requests++ < kMostRequests;
}

}  // namespace torchtpu
