// SPDX-License-Identifier: Apache-2.0
#include "random_bounds.h"

#include <ATen/native/DistributionTemplates.h>

#include <limits>
#include <string>
#include <unordered_map>

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

// A parameter that a distribution over all numbers has: its argument, PyTorch's words, what holds.
struct Parameter {
  size_t at;
  const char* refusal;
  bool (*holds)(double);
};

bool positive(double value) { return value > 0.0; }
bool not_negative(double value) { return value >= 0.0; }
bool inside_unit(double value) { return 0.0 < value && value < 1.0; }

// By overload. Those whose parameter is a tensor are checked where it has values.
const Parameter* parameter_of(const std::string& name) {
  static const auto* known = [] {
    auto* table = new std::unordered_map<std::string, Parameter>();
    for (const char* end : {"", "_"}) {
      table->insert({std::string("aten::cauchy") + end,
                     {2, "cauchy_ expects sigma > 0.0, but found sigma=", &positive}});
      table->insert({std::string("aten::exponential") + end,
                     {1, "exponential_ expects lambda > 0.0, but found lambda=", &positive}});
      table->insert({std::string("aten::geometric") + end,
                     {1, "geometric_ expects p to be in (0, 1), but got p=", &inside_unit}});
      table->insert({std::string("aten::log_normal") + end,
                     {2, "log_normal_ expects std > 0.0, but found std=", &positive}});
    }
    const char* words = "normal expects std >= 0.0, but found std ";
    table->insert({"aten::normal_", {2, words, &not_negative}});
    table->insert({"aten::normal.Tensor_float", {1, words, &not_negative}});
    return table;
  }();
  auto found = known->find(name);
  return found == known->end() ? nullptr : &found->second;
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
  } else if (const Parameter* parameter = parameter_of(name)) {
    const c10::IValue& given = args[parameter->at];
    if (given.isDouble()) {
      const double value = given.toDouble();
      TORCH_CHECK(parameter->holds(value), parameter->refusal, value);
    }
  }
}

}  // namespace torchtpu
