// SPDX-License-Identifier: Apache-2.0
#include "random_bounds.h"

#include <ATen/native/DistributionTemplates.h>

#include <limits>
#include <string>

namespace torchtpu {
namespace {

void check_whole(int64_t from, const c10::IValue& end, caffe2::TypeMeta dtype) {
  if (end.isNone()) {  // to the largest number of the dtype
    at::native::templates::check_from_to_in_range(from, from, dtype);
    return;
  }
  int64_t to = end.toInt();
  TORCH_CHECK(from < to, "random_ expects 'from' to be less than 'to', but got from=", from,
              " >= to=", to);
  at::native::templates::check_from_to_in_range(from, to - 1, dtype);
}

void check_uniform(double from, double to, const at::Tensor& self) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      c10::kHalf, c10::kBFloat16, c10::toRealValueType(self.scalar_type()), "check_uniform_bounds",
      [&] {
        double least = std::numeric_limits<scalar_t>::lowest();
        double most = std::numeric_limits<scalar_t>::max();
        TORCH_CHECK(from >= least && from <= most, "from is out of bounds for ", self.dtype());
        TORCH_CHECK(to >= least && to <= most, "to is out of bounds for ", self.dtype());
        TORCH_CHECK(from <= to, "uniform_ expects to return a [from, to) range, but found from=",
                    from, " > to=", to);
        TORCH_CHECK(to - from <= most, "uniform_ expects to-from <= std::numeric_limits<",
                    self.scalar_type(), ">::max(), but found to=", to, " and from=", from,
                    " which result in to-from to exceed the limit");
      });
}

bool is(const std::string& name, const char* op) {
  return name == std::string("aten::") + op || name == std::string("aten::") + op + "_";
}

// The parameter of a distribution over all numbers, in the words of PyTorch's templates. Overloads
// whose parameter is a tensor are checked where it has values.
void check_shape(const std::string& name, c10::ArrayRef<c10::IValue> args) {
  const bool of_means = name == "aten::normal.Tensor_float";
  const size_t at = of_means || is(name, "exponential") || is(name, "geometric") ? 1 : 2;
  if (args.size() <= at || !args[at].isDouble()) {
    return;
  }
  const double given = args[at].toDouble();
  if (is(name, "cauchy")) {
    TORCH_CHECK(given > 0.0, "cauchy_ expects sigma > 0.0, but found sigma=", given);
  } else if (is(name, "exponential")) {
    TORCH_CHECK(given > 0.0, "exponential_ expects lambda > 0.0, but found lambda=", given);
  } else if (is(name, "geometric")) {
    TORCH_CHECK(0 < given && given < 1, "geometric_ expects p to be in (0, 1), but got p=", given);
  } else if (is(name, "log_normal")) {
    TORCH_CHECK(given > 0.0, "log_normal_ expects std > 0.0, but found std=", given);
  } else if (of_means || is(name, "normal")) {
    TORCH_CHECK(given >= 0.0, "normal expects std >= 0.0, but found std ", given);
  }
}

}  // namespace

void check_random_bounds(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  const std::string& name = op.name;
  if (name == "aten::random_.from" || name == "aten::random.from") {
    check_whole(args[1].toInt(), args[2], args[0].toTensor().dtype());
  } else if (name == "aten::random_.to" || name == "aten::random.to") {
    check_whole(0, args[1], args[0].toTensor().dtype());
  } else if (name == "aten::bernoulli_.float" || name == "aten::bernoulli.p") {
    double p = args[1].toDouble();
    TORCH_CHECK(0 <= p && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
  } else if (name == "aten::uniform_" || name == "aten::uniform") {
    check_uniform(args[1].toDouble(), args[2].toDouble(), args[0].toTensor());
  } else {
    check_shape(name, args);
  }
}

}  // namespace torchtpu
