// SPDX-License-Identifier: Apache-2.0
#include "same_result.h"

#include "trace.h"

#include <algorithm>

namespace torchtpu {
namespace {

constexpr int kMostCompared = 8;  // of a computation

bool same_plan(const Plan& a, const Plan& b) {
  return a.kind == b.kind && a.starts() == b.starts() &&
         (a.kind != PlanKind::kSlice || (a.box->radix == b.box->radix && a.box->extents == b.box->extents));
}

bool same_scalars(const Node& a, const Node& b) {
  return std::equal(a.scalars.begin(), a.scalars.end(), b.scalars.begin(), b.scalars.end(),
                    [](const ScalarWords& one, const ScalarWords& other) {
                      return std::equal(std::begin(one.words), std::end(one.words), other.words);
                    });
}

// Both pending in one trace, which is locked.
class Comparison {
 public:
  explicit Comparison(const Trace& trace) : trace_(trace) {}

  bool equal(const Value* a, const Value* b) {
    if (a == b) {
      return true;
    }
    if (a == nullptr || b == nullptr || a->trace.load() != &trace_ || b->trace.load() != &trace_ ||
        a->output != b->output || a->geometry != b->geometry || ++ops_ > kMostCompared) {
      return false;
    }
    return equal_nodes(trace_.nodes[a->node], trace_.nodes[b->node]);
  }

 private:
  bool equal_nodes(const Node& a, const Node& b) {
    const OpInfo& op = *a.signature->op;
    if (a.signature != b.signature || op.random || op.alone || op.handle == nullptr ||
        a.inputs.size() != b.inputs.size() || !same_scalars(a, b)) {
      return false;
    }
    for (const NodeOutput& output : a.outputs) {
      if (output.is_update) {
        return false;
      }
    }
    for (size_t i = 0; i < a.inputs.size(); ++i) {
      if (!same_plan(a.inputs[i].plan, b.inputs[i].plan) ||
          !equal(a.inputs[i].value.get(), b.inputs[i].value.get())) {
        return false;
      }
    }
    return true;
  }

  const Trace& trace_;
  int ops_ = 0;
};

}  // namespace

bool same_result(const ValuePtr& a, const ValuePtr& b) {
  if (a == b) {
    return true;
  }
  Trace* trace = a && b ? a->trace.load() : nullptr;
  if (trace == nullptr) {
    return false;
  }
  TraceLock lock(*trace);
  return Comparison(*trace).equal(a.get(), b.get());
}

}  // namespace torchtpu
