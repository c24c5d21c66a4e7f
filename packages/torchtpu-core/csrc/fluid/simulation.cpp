// SPDX-License-Identifier: Apache-2.0
// The simulation: places start their flows of a round when they have sent and received all of
// their earlier ones; between events all rates are constant.
#include <algorithm>
#include <stdexcept>

#include "flows.h"
#include "queue.h"
#include "shares.h"

namespace torchtpu::fluid {
namespace {

// Events ahead of the one that is handled whose memory is fetched.
constexpr size_t kAhead = 8;

// `Count` holds how many flows a place sends and receives in a round.
template <typename Count>
class Simulation {
 public:
  explicit Simulation(const Problem& problem);
  Outcome run();

 private:
  // How far the places of a lane are. Of each place: one more than the round that it is in, then
  // for each round the ends of flows that are still to come, and a one: nothing follows.
  struct Lane {
    std::vector<const Round*> rounds;
    std::vector<Count> state;  // [places, rounds + 2]

    Count* of(Number place) { return state.data() + place * (rounds.size() + 2); }
  };

  const Pattern& pattern_of_round(uint16_t lane, Number round) const {
    return problem_.patterns[lanes_[lane].rounds[round]->pattern];
  }
  void add_lane(const std::vector<Number>& numbers);
  void fetch(const Event& event);
  void handle(const Event& event);
  void advance(uint16_t lane, Number place);
  void one_less(uint16_t lane, Number place, Number round);
  void start(uint16_t lane, Number round, Number place, const Way& way);
  void end(Number flow);
  void receive(const Event& event);
  void reschedule();

  const Problem& problem_;
  std::vector<Flow> flows_;
  std::vector<Number> unused_;  // room for flows
  std::vector<Number> ended_;   // since rates were last solved
  size_t places_;
  std::vector<Lane> lanes_;
  Shares shares_;
  Queue queue_;
  Time now_ = 0;
  Outcome outcome_;
};

template <typename Count>
Simulation<Count>::Simulation(const Problem& problem)
    : problem_(problem), places_(problem.start.size()), shares_(problem.capacity, flows_) {
  outcome_.lane_end.assign(problem.lanes.size(), 0);
  for (const auto& numbers : problem.lanes) {
    add_lane(numbers);
  }
  for (Number place = 0; place < places_; ++place) {
    for (uint16_t lane = 0; lane < lanes_.size(); ++lane) {
      queue_.add({problem.start[place], place, place, 0, lane, Kind::kBegins});
    }
  }
}

template <typename Count>
void Simulation<Count>::add_lane(const std::vector<Number>& numbers) {
  Lane lane;
  for (Number number : numbers) {
    lane.rounds.push_back(&problem_.rounds[number]);
  }
  lane.state.assign(places_ * (numbers.size() + 2), 0);
  for (Number place = 0; place < places_; ++place) {
    Count* waiting = lane.of(place) + 1;
    for (const Round* round : lane.rounds) {
      const auto& ends = problem_.patterns[round->pattern].ends_at_place;
      *waiting++ = static_cast<Count>(ends[place]);
    }
    *waiting = 1;
  }
  lanes_.push_back(std::move(lane));
}

template <typename Count>
Outcome Simulation<Count>::run() {
  std::vector<Event> events;
  auto soon = [this](const Event& event) { fetch(event); };
  while (queue_.take(events, soon)) {
    outcome_.events += outcome_.events == 0 || events.front().time != now_;
    now_ = events.front().time;
    for (size_t i = 0; i < events.size(); ++i) {
      if (i + kAhead < events.size()) {
        fetch(events[i + kAhead]);
      }
      handle(events[i]);
    }
    reschedule();
  }
  if (unused_.size() < flows_.size()) {
    throw std::runtime_error("A flow crosses a link that is down, and never ends.");
  }
  outcome_.shared = shares_.shared();
  return outcome_;
}

// Has the memory of an event ready by the time that it is handled.
template <typename Count>
void Simulation<Count>::fetch(const Event& event) {
  __builtin_prefetch(lanes_[event.lane].of(event.place));
  if (event.kind == Kind::kSent) {
    __builtin_prefetch(&flows_[event.what]);
    shares_.fetch(event.where);
  }
}

template <typename Count>
void Simulation<Count>::handle(const Event& event) {
  switch (event.kind) {
    case Kind::kBegins:
      return advance(event.lane, event.what);
    case Kind::kSent:
      if (flows_[event.what].end == now_ && !flows_[event.what].over) {
        end(event.what);  // else it was put off
      }
      return;
    case Kind::kArrived:
      outcome_.lane_end[event.lane] = now_;
      return one_less(event.lane, event.what, event.where);
    case Kind::kArrivedAtSeveral:
      return receive(event);
  }
}

// The place leaves the round it is in, and starts its flows of the next ones.
template <typename Count>
void Simulation<Count>::advance(uint16_t number, Number place) {
  Lane& lane = lanes_[number];
  Count* state = lane.of(place);
  do {
    Number at = state[0]++;
    if (at < lane.rounds.size()) {
      const Pattern& pattern = pattern_of_round(number, at);
      for (Number way = pattern.first(place); way < pattern.first(place + 1); ++way) {
        start(number, at, place, pattern.ways[way]);
      }
    }
  } while (state[state[0]] == 0);
}

// A flow that the place sends or receives is done; the place goes on where it was the last.
template <typename Count>
void Simulation<Count>::one_less(uint16_t number, Number place, Number round) {
  Count* state = lanes_[number].of(place);
  if (--state[round + 1] == 0 && state[0] == round + 1) {
    advance(number, place);
  }
}

template <typename Count>
void Simulation<Count>::start(uint16_t lane, Number number, Number place, const Way& way) {
  if (unused_.empty()) {
    unused_.push_back(static_cast<Number>(flows_.size()));
    flows_.emplace_back();
  }
  Number flow = unused_.back();
  unused_.pop_back();
  double size = lanes_[lane].rounds[number]->size(way.flow);
  flows_[flow] = {size,  0.0,    now_, kNever,         &way, way.latency, way.crossing.link,
                  place, number, lane, way.links == 1, false};
  shares_.add(flow, now_);
}

template <typename Count>
void Simulation<Count>::end(Number number) {
  Flow flow = flows_[number];
  shares_.remove(number);
  ended_.push_back(number);
  Number target = flow.way->target;
  Event arrival{now_ + flow.latency, target, target, flow.round, flow.lane, Kind::kArrived};
  if (flow.way->targets > 1) {
    const Pattern& pattern = pattern_of_round(flow.lane, flow.round);
    arrival.what = static_cast<Number>(flow.way - pattern.ways.data());
    arrival.kind = Kind::kArrivedAtSeveral;
  }
  queue_.add(arrival);
  one_less(flow.lane, flow.place, flow.round);
}

template <typename Count>
void Simulation<Count>::receive(const Event& event) {
  outcome_.lane_end[event.lane] = now_;
  const Pattern& pattern = pattern_of_round(event.lane, event.where);
  const Way& way = pattern.ways[event.what];
  for (Number i = 0; i < way.targets; ++i) {
    one_less(event.lane, pattern.targets[way.first_target + i], event.where);
  }
}

// New rates, and the ends that follow from them.
template <typename Count>
void Simulation<Count>::reschedule() {
  shares_.resolve(now_);
  for (Number number : shares_.changed) {
    const Flow& flow = flows_[number];
    if (flow.end != kNever) {
      queue_.add({flow.end, number, flow.place, flow.link, flow.lane, Kind::kSent});
    }
  }
  shares_.changed.clear();
  unused_.insert(unused_.end(), ended_.begin(), ended_.end());
  ended_.clear();
}

}  // namespace

Outcome run(const Problem& problem) {
  int32_t most = 0;
  for (const Pattern& pattern : problem.patterns) {
    most = std::max(most, *std::max_element(pattern.ends_at_place.begin(),
                                            pattern.ends_at_place.end()));
  }
  size_t longest = 0;
  for (const auto& lane : problem.lanes) {
    longest = std::max(longest, lane.size());
  }
  constexpr size_t kSmall = std::numeric_limits<uint16_t>::max() - 2;
  bool small = static_cast<size_t>(most) < kSmall && longest < kSmall;
  return small ? Simulation<uint16_t>(problem).run() : Simulation<uint32_t>(problem).run();
}

}  // namespace torchtpu::fluid
