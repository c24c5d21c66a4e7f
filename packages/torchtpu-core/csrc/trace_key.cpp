// SPDX-License-Identifier: Apache-2.0
#include "trace_key.h"

#include <algorithm>

namespace torchtpu {
namespace {

// Small values are not: a donation is part of what selects the program.
bool is_worth_donating(const Value& value) {
  constexpr int64_t kMinBytes = 16 * 1024;
  return value.geometry->nbytes >= kMinBytes;
}

// Comes before an op that is a recomputation; no signature has this number.
constexpr int64_t kRecomputed = -1;

class Builder {
 public:
  // With `ahead`, the operands may be results of ops that have not run.
  explicit Builder(Trace& trace, const Holders* ahead = nullptr)
      : trace_(trace), alone_(trace.nodes.size() == 1), ahead_(ahead) {}

  TraceLayout build() {
    auto& words = layout_.key.words;
    words.reserve(8 * trace_.nodes.size() + 8);
    words.push_back(trace_.device);
    for (Node& node : trace_.nodes) {
      if (node.recomputed && !alone_) {
        words.push_back(kRecomputed);
      }
      words.push_back(node.signature->id);
      for (NodeInput& input : node.inputs) {
        add_input(input);
      }
      for (NodeOutput& output : node.outputs) {
        add_output(output);
      }
      layout_.scalars.append(node.scalars.begin(), node.scalars.end());
    }
    if (layout_.operands.empty() && layout_.scalars.empty()) {
      layout_.scalars.push_back(pack_int(0));  // an operand says which device to run on
    }
    layout_.key.hash = hash_key(words);
    find_live();
    find_donatable();
    pair_donations();
    return std::move(layout_);
  }

 private:
  struct Uses {
    uint32_t count = 0;
    bool replaced = false;  // by a write of this trace
  };

  int operand(const ValuePtr& value) {
    if (alone_) {
      for (size_t i = 0; i < layout_.operands.size(); ++i) {
        if (layout_.operands[i] == value) {
          return static_cast<int>(i);
        }
      }
    } else if (auto it = index_.find(value.get()); it != index_.end()) {
      return it->second;
    }
    auto index = static_cast<int>(layout_.operands.size());
    layout_.operands.push_back(value);
    uses_.emplace_back();
    if (!alone_) {
      index_.emplace(value.get(), index);
    }
    return index;
  }

  void add_plan(const Plan& plan) {
    auto& words = layout_.key.words;
    words.push_back(static_cast<int64_t>(plan.kind));
    if (plan.kind == PlanKind::kSlice) {  // the box depends on how far the storage reaches
      words.insert(words.end(), plan.box->radix.begin(), plan.box->radix.end());
      int64_t known = 0;
      for (size_t i = 0; i < plan.box->radix.size(); ++i) {
        known = known << 1 | static_cast<int64_t>(plan.box->known_at_front(i));
      }
      words.push_back(known);
    }
    for (int64_t start : plan.starts()) {
      layout_.scalars.push_back(pack_int(start));
    }
  }

  void add_input(NodeInput& input) {
    auto& words = layout_.key.words;
    if (!input.value) {
      words.push_back(-1);
      return;
    }
    if (input.value->trace.load() == &trace_) {
      words.push_back((int64_t{1} << 62) | (int64_t{input.value->node} << 16) | input.value->output);
      input.value->uses_in_trace += 1;
    } else {
      int index = operand(input.value);
      uses_[index].count += 1;
      uses_[index].replaced |= input.replaced;
      words.push_back(index);
    }
    words.push_back(input.value->geometry->id);
    add_plan(input.plan);
  }

  void add_output(NodeOutput& output) {
    auto& words = layout_.key.words;
    words.push_back(output.value->geometry->id);
    if (output.is_update) {
      words.push_back(-2 - output.base);
      add_plan(output.plan);
    }
  }

  // Which results a later one of the same op replaces: ops on lists write a storage piece by piece.
  static std::vector<bool> superseded(const Node& node) {
    std::vector<bool> replaced(node.outputs.size(), false);
    for (const NodeOutput& output : node.outputs) {
      if (output.is_update && output.base <= kOwnOutput) {
        replaced[static_cast<size_t>(kOwnOutput - output.base)] = true;
      }
    }
    return replaced;
  }

  // A result is live if anything besides this trace refers to it.
  void find_live() {
    for (Node& node : trace_.nodes) {
      std::vector<bool> replaced = alone_ ? superseded(node) : std::vector<bool>();
      for (size_t i = 0; i < node.outputs.size(); ++i) {
        NodeOutput& output = node.outputs[i];
        bool live = alone_ ? !replaced[i]
                           : output.value.use_count() > 1 + output.value->uses_in_trace;
        output.value->uses_in_trace = 0;
        layout_.liveness.live.push_back(live ? 1 : 0);
        if (live) {
          layout_.live.push_back(&output);
        }
      }
    }
  }

  // An operand that only this trace still holds can give its memory away.
  void find_donatable() {
    for (size_t i = 0; i < layout_.operands.size(); ++i) {
      layout_.donatable.push_back((!alone_ || uses_[i].replaced) &&
                                  dies(layout_.operands[i], uses_[i].count + 1));
    }
  }

  bool dies(const ValuePtr& operand, uint32_t holders) const {
    if (ahead_ == nullptr) {
      return is_donatable(operand, holders);
    }
    holders = ahead_->at(operand.get()) + 1;
    bool pending = operand->trace.load() != nullptr;
    return pending ? is_worth_donating(*operand) && operand.use_count() == holders
                   : is_donatable(operand, holders);
  }

  static bool same_shape(const Geometry& a, const Geometry& b) {
    return &a == &b || (a.dtype == b.dtype && a.sizes == b.sizes);
  }

  // First to the result that takes the operand's place in its storage, then to any.
  void pair_donations() {
    std::vector<bool> taken(layout_.live.size(), false);
    std::unordered_map<const void*, int> at_home;
    c10::SmallVector<int, 16> left;
    auto pair = [&](int operand, int out) {
      taken[out] = true;
      layout_.liveness.donated.emplace_back(operand, out);
    };
    for (size_t i = 0; i < layout_.operands.size(); ++i) {
      if (!layout_.donatable[i]) {
        continue;
      }
      if (at_home.empty()) {
        for (size_t out = 0; out < layout_.live.size(); ++out) {
          at_home.emplace(layout_.live[out]->value->home, static_cast<int>(out));
        }
      }
      const Value& operand = *layout_.operands[i];
      auto it = operand.home == nullptr ? at_home.end() : at_home.find(operand.home);
      if (it != at_home.end() && !taken[it->second] &&
          same_shape(*operand.geometry, *layout_.live[it->second]->value->geometry)) {
        pair(static_cast<int>(i), it->second);
      } else {
        left.push_back(static_cast<int>(i));
      }
    }
    for (int i : left) {
      for (size_t out = 0; out < layout_.live.size(); ++out) {
        if (!taken[out] && same_shape(*layout_.operands[i]->geometry,
                                      *layout_.live[out]->value->geometry)) {
          pair(i, static_cast<int>(out));
          break;
        }
      }
    }
    std::sort(layout_.liveness.donated.begin(), layout_.liveness.donated.end());
  }

  Trace& trace_;
  bool alone_;
  const Holders* ahead_;
  TraceLayout layout_;
  c10::SmallVector<Uses, 8> uses_;
  std::unordered_map<const Value*, int> index_;
};

}  // namespace

bool is_donatable(const ValuePtr& operand, uint32_t holders) {
  PyObject* array = operand->array.load();
  return is_worth_donating(*operand) && array != nullptr && Py_REFCNT(array) == 1 &&
         operand.use_count() == holders;
}

TraceLayout lay_out(Trace& trace) { return Builder(trace).build(); }

TraceLayout lay_out_ahead(Trace& trace, const Holders& holders) {
  return Builder(trace, &holders).build();
}

void adopt(Trace& trace, TraceLayout& layout, const Liveness& liveness) {
  layout.liveness = liveness;
  layout.live.clear();
  size_t index = 0;
  for (Node& node : trace.nodes) {
    for (NodeOutput& output : node.outputs) {
      if (liveness.live[index++] != 0) {
        layout.live.push_back(&output);
      }
    }
  }
}

}  // namespace torchtpu
