// SPDX-License-Identifier: Apache-2.0
#include "number_range.h"

#include "op_info.h"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

namespace torchtpu {
namespace {

constexpr int64_t kDoubtful = 200;  // none of the tags of canonicalise.cpp

// What the result holds: the dtype that a call asks for, or that of its first tensor.
std::optional<c10::ScalarType> dtype_of(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  std::optional<c10::ScalarType> found;
  for (size_t i = 0; i < args.size(); ++i) {
    if (op.args[i].dtype && args[i].isInt()) {
      return static_cast<c10::ScalarType>(args[i].toInt());
    }
    if (found) {
      continue;
    }
    if (args[i].isTensor() && args[i].toTensor().defined()) {
      found = args[i].toTensor().scalar_type();
    } else if (args[i].isTensorList() && !args[i].toListRef().empty()) {
      found = args[i].toListRef()[0].toTensor().scalar_type();
    }
  }
  return found;
}

bool fits(const at::Scalar& number, c10::ScalarType dtype) {
#define TORCHTPU_FITS(type, name) \
  case c10::ScalarType::name:     \
    return number.isComplex() ? !c10::overflows<type>(number.toComplexDouble()) \
                              : !c10::overflows<type>(number.toDouble());
  switch (dtype) {
    AT_FORALL_SCALAR_TYPES_AND2(Half, BFloat16, TORCHTPU_FITS)
    default:  // complex numbers hold all others, and bools all of them
      return true;
  }
#undef TORCHTPU_FITS
}

// Half of the largest number that a dtype holds, or that up to which it holds each whole number.
template <class T>
double most(bool whole_numbers) {
  using Limits = std::numeric_limits<T>;
  const auto largest = static_cast<double>(Limits::max());
  if (!whole_numbers) {
    return largest / 2;
  }
  return Limits::is_integer ? largest : std::ldexp(1.0, Limits::digits);
}

bool is_within(double number, c10::ScalarType dtype, bool whole_numbers) {
#define TORCHTPU_WITHIN(type, name)                                     \
  case c10::ScalarType::name: {                                         \
    const double largest = most<type>(whole_numbers);                   \
    const bool is_signed = std::numeric_limits<type>::is_signed;        \
    return (is_signed ? -largest : 0) <= number && number <= largest;   \
  }
  switch (dtype) {
    AT_FORALL_SCALAR_TYPES_AND3(Half, BFloat16, Bool, TORCHTPU_WITHIN)
    default:  // complex numbers: PyTorch speaks of their dtype
      return true;
  }
#undef TORCHTPU_WITHIN
}

bool holds(const NumberRule& rule, const at::Scalar& number, double bound,
           std::optional<c10::ScalarType> dtype) {
  if (rule.whole && !(dtype && c10::isIntegralType(*dtype, /*includeBool=*/true))) {
    return true;
  }
  if (rule.relation == NumberRule::kFits) {
    return !dtype || fits(number, *dtype);
  }
  if (number.isComplex()) {
    return true;
  }
  const double value = number.toDouble();
  switch (rule.relation) {
    case NumberRule::kFits:
    case NumberRule::kCounts:
    case NumberRule::kHalves:
      return !dtype || is_within(value, *dtype, rule.relation == NumberRule::kCounts);
    case NumberRule::kLess:
      return value < bound;
    case NumberRule::kLessOrEqual:
      return value <= bound;
    case NumberRule::kGreater:
      return value > bound;
    case NumberRule::kGreaterOrEqual:
      return value >= bound;
    case NumberRule::kNotEqual:
      return value != bound;
  }
  return true;
}

// A number of a call, also one in a tensor of the host; nothing for what is not known here.
std::optional<at::Scalar> number_in(const c10::IValue& value) {
  if (value.isScalar()) {
    return value.toScalar();
  }
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (tensor.defined() && tensor.is_cpu() && tensor.dim() == 0) {
      return tensor.item();
    }
  }
  return std::nullopt;
}

// Without a look at a dtype: each holds a small number.
bool surely_holds(const NumberRule& rule, const c10::IValue& value) {
  return rule.relation == NumberRule::kFits &&
         (value.isNone() || (value.isInt() && value.toInt() >= 0 && value.toInt() < 128));
}

void push(const at::Scalar& number, c10::SmallVectorImpl<int64_t>& key) {
  auto value = number.toComplexDouble();
  int64_t words[2];
  std::memcpy(words, &value, sizeof(words));
  key.append({kDoubtful, words[0], words[1]});
}

}  // namespace

std::vector<NumberRule> number_rules(const c10::FunctionSchema& schema, pybind11::handle rules) {
  static const std::map<std::string, NumberRule::Relation> relations{
      {"fits", NumberRule::kFits},   {"counts", NumberRule::kCounts},
      {"halves", NumberRule::kHalves}, {"<", NumberRule::kLess},
      {"<=", NumberRule::kLessOrEqual}, {">", NumberRule::kGreater},
      {">=", NumberRule::kGreaterOrEqual}, {"!=", NumberRule::kNotEqual}};
  std::vector<NumberRule> found;
  if (rules.is_none()) {
    return found;
  }
  for (auto item : rules) {
    auto [argument, relation, other, whole] =
        item.cast<std::tuple<std::string, std::string, py::object, bool>>();
    auto at = schema.argumentIndexWithName(argument);
    if (!at) {
      continue;  // of another overload
    }
    NumberRule rule{static_cast<size_t>(*at), relations.at(relation)};
    rule.whole = whole;
    if (py::isinstance<py::str>(other)) {
      rule.other = schema.argumentIndexWithName(other.cast<std::string>()).value();
    } else {
      rule.bound = other.cast<double>();
    }
    found.push_back(rule);
  }
  return found;
}

bool push_doubtful(const OpInfo& op, c10::ArrayRef<c10::IValue> args,
                   c10::SmallVectorImpl<int64_t>& key) {
  bool all_hold = std::all_of(op.number_rules.begin(), op.number_rules.end(), [&](const auto& rule) {
    return surely_holds(rule, args[rule.argument]);
  });
  if (all_hold) {  // as an `alpha` of 1: nothing else is looked at
    return false;
  }
  const auto dtype = dtype_of(op, args);
  const size_t before = key.size();
  for (const NumberRule& rule : op.number_rules) {
    double bound = rule.bound;
    std::optional<at::Scalar> other;
    if (rule.other >= 0) {
      other = number_in(args[rule.other]);
      if (!other) {
        continue;
      }
      bound = other->toDouble();
    }
    const c10::IValue& value = args[rule.argument];
    if (auto number = number_in(value)) {
      if (!holds(rule, *number, bound, dtype)) {
        push(*number, key);
        if (other) {
          push(*other, key);
        }
      }
    } else if (value.isList() && op.args[rule.argument].number) {
      for (const c10::IValue& item : value.toListRef()) {
        if (!holds(rule, item.toScalar(), bound, dtype)) {
          push(item.toScalar(), key);
        }
      }
    }
  }
  return key.size() != before;
}

}  // namespace torchtpu
