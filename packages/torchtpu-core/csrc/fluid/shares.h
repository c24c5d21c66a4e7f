// SPDX-License-Identifier: Apache-2.0
// Max-min fair rates of the flows under way, solved again only where something changed.
//
// No flow can go faster without slowing one that is no faster (Bertsekas and Gallager, Data
// Networks, 1992, section 6.5.2). Links whose flows cross nothing else share evenly. Others
// are solved together with all links that their flows reach, by progressive filling: the
// link that offers its flows least fixes them, the rest share what is left.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "flows.h"

namespace torchtpu::fluid {

// A flow under way, in one line of the cache.
struct alignas(64) Flow {
  double left = 0;  // bytes at `since`
  double rate = 0;
  Time since = 0;
  Time end = kNever;  // at this rate
  const Way* way = nullptr;
  Time latency = 0;
  Number link = 0;   // the first that it crosses
  Number place = 0;  // that sends it
  Number round = 0;  // within the lane
  uint16_t lane = 0;
  bool one_link = true;
  bool over = true;
};

// Flows on one link, and how often each crosses it; rarely more than two.
class alignas(32) Users {
 public:
  struct User {
    Number flow;
    float weight;
  };
  bool empty() const { return count_ == 0; }
  Number size() const { return count_; }
  void add(const User& user);
  void clear() { count_ = 0; }
  template <typename Keep>
  void keep(Keep keep) {
    Number kept = 0;
    for (Number i = 0; i < count_; ++i) {
      if (keep(at(i))) {
        at(kept++) = at(i);
      }
    }
    count_ = kept;
  }
  const User& operator[](Number i) const {
    return i < few_.size() ? few_[i] : (*more_)[i - few_.size()];
  }

  Number reaching_others : 31 = 0;  // flows with several links, once for each crossing
  Number dirty : 1 = 0;             // whether shares are to be solved again

 private:
  User& at(Number i) { return const_cast<User&>((*this)[i]); }

  Number count_ = 0;
  std::array<User, 2> few_;
  std::unique_ptr<std::vector<User>> more_;
};

class Shares {
 public:
  Shares(std::span<const double> capacity, std::vector<Flow>& flows);

  // A flow starts or ends; those whose rate and end this changes at once are in `changed`.
  void add(Number flow, Time now);
  void remove(Number flow);

  // Sets the other rates that follow from what was added and removed.
  void resolve(Time now);

  std::vector<Number> changed;  // flows with another end, for the caller to take

  bool shared() const { return shared_; }
  void fetch(Number link) const { __builtin_prefetch(&links_[link]); }

 private:
  std::span<const Crossing> crossings_of(Number flow) const {
    return {flows_[flow].way->crossings, flows_[flow].way->links};
  }
  void touch(Number link);
  void share_evenly(Number link, Time now);
  void gather(Number link);
  void fill(Time now);
  void set_rate(Number flow, double rate, Time now);

  std::span<const double> capacity_;
  std::vector<Flow>& flows_;
  std::vector<Users> links_;
  std::vector<Number> solved_in_;  // [links] the last solution that it was part of
  std::vector<Number> dirty_;
  std::vector<Number> component_;
  std::vector<double> left_;      // [links] capacity not given away yet
  std::vector<double> demand_;    // [links] weight of the flows not fixed yet
  std::vector<Number> unfixed_;   // [links] how many uses those are
  std::vector<Number> fixed_in_;  // [flows] the last solution that fixed it
  Number mark_ = 0;
  bool shared_ = false;
};

}  // namespace torchtpu::fluid
