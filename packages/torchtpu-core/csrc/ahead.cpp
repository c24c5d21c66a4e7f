// SPDX-License-Identifier: Apache-2.0
#include "ahead.h"

#include "restless.h"

namespace torchtpu {
namespace {

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

}  // namespace

bool build_ahead(const Trace& current, const TraceLayout& layout, std::span<Node> rest) {
  Requests requests(current.journal.epoch());
  requests.add(current, layout);
  Holders holders;
  count(current.nodes[0], holders);
  for (const ValuePtr& operand : layout.operands) {
    holders[operand.get()] += 1;
  }
  Trace alone;
  alone.device = current.device;
  for (Node& node : rest) {
    count(node, holders);
    alone.nodes.push_back(std::move(node));
    TraceLayout later = lay_out_ahead(alone, holders);
    if (!find_program(alone, later)) {
      requests.add(alone, later);
    }
    node = std::move(alone.nodes[0]);
    alone.nodes.clear();
  }
  return requests.build();
}

}  // namespace torchtpu
