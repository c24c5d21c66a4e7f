// SPDX-License-Identifier: Apache-2.0
#include "shares.h"

#include <algorithm>
#include <cmath>
#include <queue>

namespace torchtpu::fluid {
namespace {

// A flow with less than this left to do, in picoseconds, has ended.
constexpr double kRounding = 0.5;
// Shares that differ by less are the same.
constexpr double kSame = 1e-12;

}  // namespace

Shares::Shares(std::span<const double> capacity, std::vector<Flow>& flows)
    : capacity_(capacity),
      flows_(flows),
      links_(capacity.size()),
      solved_in_(capacity.size(), 0),
      left_(capacity.size()),
      demand_(capacity.size()),
      unfixed_(capacity.size()) {}

void Users::add(const User& user) {
  if (count_ < few_.size()) {
    few_[count_] = user;
  } else {
    if (!more_) {
      more_ = std::make_unique<std::vector<User>>();
    }
    more_->resize(count_ - few_.size());
    more_->push_back(user);
  }
  ++count_;
}

void Shares::touch(Number link) {
  if (!links_[link].dirty) {
    links_[link].dirty = 1;
    dirty_.push_back(link);
  }
}

void Shares::add(Number number, Time now) {
  const Flow& flow = flows_[number];
  if (flow.one_link) {
    Users& users = links_[flow.link];
    bool alone = users.empty() && !users.dirty;
    float weight = flow.way->crossing.weight;
    users.add({number, weight});
    if (alone) {
      shared_ |= weight > 1;
      set_rate(number, capacity_[flow.link] / weight, now);
    } else {
      touch(flow.link);
    }
    return;
  }
  for (const Crossing& crossing : crossings_of(number)) {
    links_[crossing.link].add({number, crossing.weight});
    ++links_[crossing.link].reaching_others;
    touch(crossing.link);
  }
}

void Shares::remove(Number number) {
  Flow& flow = flows_[number];
  flow.over = true;  // its uses go when the links are solved again
  if (flow.one_link) {
    Users& users = links_[flow.link];
    if (users.size() == 1 && !users.dirty) {
      users.clear();
    } else {
      touch(flow.link);
    }
    return;
  }
  for (const Crossing& crossing : crossings_of(number)) {
    --links_[crossing.link].reaching_others;
    touch(crossing.link);
  }
}

void Shares::resolve(Time now) {
  ++mark_;
  for (Number number : dirty_) {
    links_[number].dirty = 0;
    links_[number].keep([this](const Users::User& user) { return !flows_[user.flow].over; });
  }
  for (Number number : dirty_) {
    const Users& users = links_[number];
    if (solved_in_[number] == mark_ || users.empty()) {
      continue;
    }
    if (users.reaching_others == 0) {
      share_evenly(number, now);
    } else {
      gather(number);
      fill(now);
    }
  }
  dirty_.clear();
}

void Shares::share_evenly(Number number, Time now) {
  const Users& users = links_[number];
  double demand = 0;
  for (Number i = 0; i < users.size(); ++i) {
    demand += users[i].weight;
  }
  shared_ |= demand > 1;
  for (Number i = 0; i < users.size(); ++i) {
    set_rate(users[i].flow, capacity_[number] / demand, now);
  }
}

// All links that flows over one connect it with.
void Shares::gather(Number first) {
  component_.assign(1, first);
  solved_in_[first] = mark_;
  for (size_t at = 0; at < component_.size(); ++at) {
    const Users& users = links_[component_[at]];
    for (Number i = 0; i < users.size(); ++i) {
      const auto& user = users[i];
      for (const Crossing& crossing : crossings_of(user.flow)) {
        if (solved_in_[crossing.link] != mark_) {
          solved_in_[crossing.link] = mark_;
          component_.push_back(crossing.link);
        }
      }
    }
  }
}

void Shares::fill(Time now) {
  using Offer = std::pair<double, Number>;
  std::priority_queue<Offer, std::vector<Offer>, std::greater<>> offers;
  fixed_in_.resize(flows_.size(), 0);
  for (Number number : component_) {
    left_[number] = capacity_[number];
    demand_[number] = 0;
    unfixed_[number] = static_cast<Number>(links_[number].size());
    const Users& users = links_[number];
    for (Number i = 0; i < users.size(); ++i) {
      const auto& user = users[i];
      demand_[number] += user.weight;
    }
    shared_ |= demand_[number] > 1;
    offers.emplace(left_[number] / demand_[number], number);
  }
  while (!offers.empty()) {
    auto [offered, number] = offers.top();
    offers.pop();
    if (unfixed_[number] == 0) {
      continue;
    }
    double share = std::max(left_[number], 0.0) / demand_[number];
    if (share > offered * (1 + kSame)) {
      offers.emplace(share, number);  // flows of it were fixed by others; its turn comes later
      continue;
    }
    const Users& users = links_[number];
    for (Number i = 0; i < users.size(); ++i) {
      const auto& user = users[i];
      if (fixed_in_[user.flow] == mark_) {
        continue;
      }
      fixed_in_[user.flow] = mark_;
      set_rate(user.flow, share, now);
      for (const Crossing& crossing : crossings_of(user.flow)) {
        left_[crossing.link] -= crossing.weight * share;
        demand_[crossing.link] -= crossing.weight;
        --unfixed_[crossing.link];
      }
    }
  }
}

void Shares::set_rate(Number number, double rate, Time now) {
  Flow& flow = flows_[number];
  if (rate == flow.rate && flow.end != kNever) {
    return;
  }
  flow.left -= flow.rate * static_cast<double>(now - flow.since);
  flow.since = now;
  flow.rate = rate;
  double needed = rate > 0 ? std::ceil(flow.left / rate - kRounding) : 0;
  flow.end = rate > 0 ? now + std::max<Time>(static_cast<Time>(needed), 0) : kNever;
  changed.push_back(number);
}

}  // namespace torchtpu::fluid
