// SPDX-License-Identifier: Apache-2.0
#include "trace_key.h"

namespace torchtpu {
namespace {

// Smaller values are not worth a donation: it is part of the key.
constexpr int64_t kDonationMinBytes = 16 * 1024;

class Builder {
 public:
  explicit Builder(Trace& trace) : trace_(trace) {}

  TraceLayout build() {
    auto& words = layout_.key.words;
    words.push_back(trace_.device);
    for (Node& node : trace_.nodes) {
      words.push_back(node.signature->id);
      for (NodeInput& input : node.inputs) {
        add_input(input);
      }
      for (NodeOutput& output : node.outputs) {
        add_output(output);
      }
      layout_.scalars.insert(layout_.scalars.end(), node.scalars.begin(), node.scalars.end());
    }
    if (layout_.operands.empty() && layout_.scalars.empty()) {
      layout_.scalars.push_back(pack_int(0));  // an operand says which device to run on
    }
    find_live();
    find_donated();
    layout_.key.hash = hash_key(words);
    return std::move(layout_);
  }

 private:
  int operand(const ValuePtr& value) {
    for (size_t i = 0; i < layout_.operands.size(); ++i) {
      if (layout_.operands[i] == value) {
        return static_cast<int>(i);
      }
    }
    layout_.operands.push_back(value);
    uses_.push_back(0);
    return static_cast<int>(layout_.operands.size()) - 1;
  }

  void add_plan(const Plan& plan) {
    auto& words = layout_.key.words;
    words.push_back(static_cast<int64_t>(plan.kind));
    if (plan.kind == PlanKind::kSlice) {  // the box depends on how far the storage reaches
      words.insert(words.end(), plan.radix.begin(), plan.radix.end());
    }
    for (int64_t start : plan.starts) {
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
      uses_[index] += 1;
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

  // A result is live if anything besides this trace refers to it.
  void find_live() {
    auto& words = layout_.key.words;
    words.push_back(-3);
    for (Node& node : trace_.nodes) {
      for (NodeOutput& output : node.outputs) {
        bool live = output.value.use_count() > 1 + output.value->uses_in_trace;
        output.value->uses_in_trace = 0;
        words.push_back(live ? 1 : 0);
        if (live) {
          layout_.live.push_back(&output);
        }
      }
    }
  }

  // An operand that only this trace still holds gives its memory to the output that
  // replaces it in the same storage.
  void find_donated() {
    auto& words = layout_.key.words;
    words.push_back(-4);
    std::vector<bool> taken(layout_.live.size(), false);
    for (size_t i = 0; i < layout_.operands.size(); ++i) {
      const ValuePtr& operand = layout_.operands[i];
      PyObject* array = operand->array.load();
      if (operand->geometry->nbytes < kDonationMinBytes || array == nullptr ||
          operand.use_count() != static_cast<size_t>(uses_[i]) + 1 || Py_REFCNT(array) != 1) {
        continue;
      }
      for (size_t out = 0; out < layout_.live.size(); ++out) {
        const Geometry* geometry = layout_.live[out]->value->geometry;
        if (!taken[out] && geometry->dtype == operand->geometry->dtype &&
            geometry->sizes == operand->geometry->sizes) {
          taken[out] = true;
          layout_.donated.push_back(static_cast<int>(i));
          layout_.donated_to.push_back(static_cast<int>(out));
          words.push_back(static_cast<int64_t>(i));
          break;
        }
      }
    }
  }

  Trace& trace_;
  TraceLayout layout_;
  std::vector<int> uses_;
};

}  // namespace

TraceLayout lay_out(Trace& trace) { return Builder(trace).build(); }

}  // namespace torchtpu
