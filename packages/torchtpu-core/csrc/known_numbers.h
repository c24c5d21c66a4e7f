// SPDX-License-Identifier: Apache-2.0
// Numbers that the host asks of unchanged tensors again and again, such as how many elements of a
// mask are true: a script that indexes by a mask that stays is not stopped for it at each step.
#pragma once

#include "trace.h"

#include <ATen/core/Tensor.h>

#include <optional>
#include <variant>
#include <vector>

namespace torchtpu {

// One such question: a tensor of one whole number that is not computed yet, by an op of a few
// (`count_nonzero`, `any`, ...) after a short computation from values that are there. Values do not
// change (but for those that `may_change`), so the same computation of the same values has the same
// result.
class Question {
 public:
  explicit Question(const at::Tensor& tensor);
  // How many elements of a tensor are not zero, be it computed or not.
  static Question of_count(const at::Tensor& tensor);

  // What was answered before.
  std::optional<c10::Scalar> answer() const;
  // Remembers an answer, if this is such a question.
  void note(const c10::Scalar& answer) const;

 private:
  Question() = default;

  std::vector<int64_t> key_;  // empty: it is none
};

// Where a tensor's elements are not zero, found by the host in the device's memory; or how many they
// are, if the answer is known: then the device can find them, and no step stops.
std::variant<int64_t, at::Tensor> nonzero_on_host(const at::Tensor& tensor);

// The memory of a value is written by other means than ops.
void may_change(Value& value);

}  // namespace torchtpu
