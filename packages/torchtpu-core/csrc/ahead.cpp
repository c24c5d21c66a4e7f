// SPDX-License-Identifier: Apache-2.0
#include "ahead.h"

#include "restless.h"

#include <algorithm>

namespace torchtpu {
namespace {

constexpr size_t kShortest = 3;  // trace that is worth one program at first sight

// What is to be built, each once.
class Requests {
 public:
  explicit Requests(uint64_t stream) : stream_(stream) {}

  void add(const Trace& trace, const TraceLayout& layout) {
    if (!has(layout)) {
      descriptions_.append(describe_trace(trace, layout));
      keys_.emplace_back(layout.key, layout.liveness);
      calls_.emplace_back(trace.nodes[0].signature, trace.nodes[0].line);
    }
  }

  const py::list& descriptions() const { return descriptions_; }
  const auto& keys() const { return keys_; }

  bool build() {
    if (keys_.size() < 2) {
      return false;
    }
    bool compiled = false;
    py::list made = bridge("build_side_by_side")(descriptions_);
    for (size_t i = 0; i < keys_.size(); ++i) {
      if (!made[i].is_none()) {
        auto program = std::make_shared<Program>();
        program->fill(made[i]);
        compiled |= program->compiled;
        if (program->compiled) {
          note_program_of_list(*calls_[i].first, calls_[i].second, stream_);
        }
        run_counters().compiles.fetch_add(program->compiled ? 1 : 0);
        add_program(keys_[i].first, keys_[i].second, std::move(program));
      }
    }
    return compiled;
  }

 private:
  bool has(const TraceLayout& layout) const {
    for (const auto& [key, liveness] : keys_) {
      if (key.hash == layout.key.hash && key == layout.key && liveness == layout.liveness) {
        return true;
      }
    }
    return false;
  }

  uint64_t stream_;
  py::list descriptions_;
  std::vector<std::pair<TraceKey, Liveness>> keys_;
  std::vector<std::pair<const Signature*, UserLine>> calls_;
};

void count(const Node& node, Holders& holders) {
  for (const NodeInput& input : node.inputs) {
    holders[input.value.get()] += 1;
  }
  for (const NodeOutput& output : node.outputs) {
    holders[output.value.get()] += 1;
  }
}

// Calls `use` with each of `nodes` as a trace of its own, laid out as when its turn comes to run alone.
template <class Use>
void each_alone(c10::DeviceIndex device, std::span<Node> nodes, Holders& holders, const Use& use) {
  Trace alone;
  alone.device = device;
  for (Node& node : nodes) {
    count(node, holders);
    alone.nodes.push_back(std::move(node));
    use(alone, lay_out_ahead(alone, holders));
    node = std::move(alone.nodes[0]);
    alone.nodes.clear();
  }
}

}  // namespace

bool build_ahead(const Trace& current, const TraceLayout& layout, std::span<Node> rest) {
  Requests requests(current.journal.epoch());
  requests.add(current, layout);
  Holders holders;
  count(current.nodes[0], holders);
  for (const ValuePtr& operand : layout.operands) {
    holders[operand.get()] += 1;
  }
  each_alone(current.device, rest, holders, [&](Trace& alone, TraceLayout later) {
    if (!find_program(alone, later)) {
      requests.add(alone, later);
    }
  });
  return requests.build();
}

bool build_at_first_sight(Trace& trace, const FlushRecord& record) {
  if (trace.nodes.size() < kShortest) {
    return false;
  }
  Requests requests(trace.journal.epoch());
  Holders holders;
  each_alone(trace.device, trace.nodes, holders, [&](Trace& alone, TraceLayout layout) {
    if (!find_program(alone, layout)) {
      requests.add(alone, layout);
    }
  });
  FirstSights& sights = trace.journal.first_sights();
  size_t again = std::count_if(requests.keys().begin(), requests.keys().end(),
                               [&](const auto& key) { return sights.has(key.first.hash); });
  size_t least = again + std::max(kShortest, trace.nodes.size() / 2);
  if (requests.keys().size() < least) {
    return false;
  }
  TraceLayout layout = lay_out(trace);
  py::object made = bridge("build_at_first_sight")(describe_trace(trace, layout), requests.descriptions(),
                                                   least, name_of(record.reason));
  if (made.is_none()) {
    return false;
  }
  auto program = std::make_shared<Program>();
  program->fill(std::move(made));
  run_counters().compiles.fetch_add(1);
  add_program(layout.key, layout.liveness, std::move(program));
  for (const auto& [key, liveness] : requests.keys()) {
    sights.add(key.hash);
  }
  return true;
}

}  // namespace torchtpu
