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
constexpr size_t kMostKnown = 1 << 16;  // pieces; then all are forgotten
constexpr int kPlaceBits = 15;  // of the number of places for sites

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

size_t place_of(const Node& node) { return node.site >> (64 - kPlaceBits); }

uint64_t hash_of(std::span<const Node> piece) {
  uint64_t hash = piece.size();
  for (const Node& node : piece) {
    hash = mixed(hash, form_of(node));
  }
  return hash;
}

}  // namespace

Pieces::Site& Pieces::site_of(const Node& node) {
  if (places_.empty()) {
    places_.resize(size_t{1} << kPlaceBits);
  }
  auto& [one, other] = places_[place_of(node)];
  if (one.name == node.site) {
    return one;
  }
  if (other.name != node.site) {
    Site& rarer = one.times <= other.times ? one : other;
    rarer = Site{node.site};
    return rarer;
  }
  return other;
}

void Pieces::note(const Node& node) {
  Site& site = site_of(node);
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
  if (places_.empty()) {
    return false;
  }
  const auto& place = places_[place_of(node)];
  return std::any_of(place.begin(), place.end(), [&](const Site& site) {
    return site.name == node.site && site.times >= kSteady;
  });
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
      const Site& site = site_of(node);
      return site.times >= kSteady << std::min(site.requests, kMostDoublings);
    };
    if (!std::all_of(piece.begin(), piece.end(), is_settled)) {
      return false;
    }
    for (const Node& node : piece) {
      ++site_of(node).requests;
    }
  }
  return requests++ < kMostRequests;
}

}  // namespace torchtpu
