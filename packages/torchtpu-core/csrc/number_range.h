// SPDX-License-Identifier: Apache-2.0
// Numbers that PyTorch refuses by their value: by the rules of runtime/number_ranges.py.
#pragma once

#include <ATen/core/function_schema.h>
#include <c10/util/SmallVector.h>
#include <pybind11/pybind11.h>

#include <vector>

namespace torchtpu {

struct OpInfo;

// What holds of a number of a call.
struct NumberRule {
  enum Relation {
    kFits,            // the dtype of the result holds it
    kCounts,          // that dtype holds each whole number up to it
    kHalves,          // that dtype holds twice as much
    kLess,            // than `bound`, or than the number in `other`
    kLessOrEqual,
    kGreater,
    kGreaterOrEqual,
    kNotEqual,
  };
  size_t argument;
  Relation relation;
  int other = -1;     // an argument; or none
  double bound = 0;
  bool whole = false; // for results of integers and truth values alone
};

// The rules that Python gives as (argument, relation, other, whole) for the arguments that the
// operator has.
std::vector<NumberRule> number_rules(const c10::FunctionSchema& schema, pybind11::handle rules);

// Adds to a call's key the numbers of which a rule does not hold: such a call is looked at anew.
// False if there are none.
bool push_doubtful(const OpInfo& op, c10::ArrayRef<c10::IValue> args,
                   c10::SmallVectorImpl<int64_t>& key);

}  // namespace torchtpu
