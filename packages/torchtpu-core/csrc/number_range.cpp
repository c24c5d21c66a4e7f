// SPDX-License-Identifier: Apache-2.0
#include "number_range.h"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

namespace torchtpu {
namespace {

// What the result holds: the dtype that a call asks for, or that of its first tensor.
std::optional<c10::ScalarType> dtype_of(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  std::optional<c10::ScalarType> found;
  for (size_t i = 0; i < args.size(); ++i) {
    if (op.args[i].dtype && args[i].isInt()) {
      return static_cast<c10::ScalarType>(args[i].toInt());
    }
    if (!found && args[i].isTensor() && args[i].toTensor().defined()) {
      found = args[i].toTensor().scalar_type();
    }
  }
  return found;
}

// What a number is converted to; nothing if it is computed with as it is.
std::optional<c10::ScalarType> target_of(Fit fit, const at::Scalar& number, c10::ScalarType dtype) {
  bool is_short = dtype == c10::ScalarType::Half || dtype == c10::ScalarType::BFloat16;
  switch (fit) {
    case Fit::kAny:
      return std::nullopt;
    case Fit::kExactly:
      return dtype;
    case Fit::kInOpmath:
      return is_short ? c10::ScalarType::Float : dtype;
    case Fit::kPromoted:
      break;
  }
  if (number.isComplex()) {
    return c10::ScalarType::Double;
  }
  bool becomes_float = number.isFloatingPoint() && c10::isIntegralType(dtype, /*includeBool=*/true);
  return becomes_float ? c10::get_default_dtype_as_scalartype() : dtype;
}

void convert(const at::Scalar& number, c10::ScalarType dtype) {
#define TORCHTPU_CONVERT(type, name)   \
  case c10::ScalarType::name:          \
    static_cast<void>(number.to<type>()); \
    return;
  switch (dtype) {
    AT_FORALL_SCALAR_TYPES_AND2(Half, BFloat16, TORCHTPU_CONVERT)
    default:  // complex numbers hold all others, and bools all of them
      return;
  }
#undef TORCHTPU_CONVERT
}

}  // namespace

Fit fit_of(const py::dict& options, const std::string& argument) {
  static const std::map<std::string, Fit> fits{
      {"exactly", Fit::kExactly}, {"in opmath", Fit::kInOpmath}, {"promoted", Fit::kPromoted}};
  if (!options.contains("fits") || !options["fits"].contains(argument)) {
    return Fit::kAny;
  }
  return fits.at(options["fits"][py::str(argument)].cast<std::string>());
}

void require_fit(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  auto dtype = dtype_of(op, args);
  for (size_t i = 0; dtype.has_value() && i < args.size(); ++i) {
    if (!args[i].isScalar()) {
      continue;
    }
    auto number = args[i].toScalar();
    if (auto target = target_of(op.args[i].fit, number, *dtype)) {
      try {
        convert(number, *target);
      } catch (const std::runtime_error& error) {
        throw std::runtime_error(c10::str(error.what(), ": ", args[i], " (argument '",
                                          op.args[i].name, "' of ", op.name, ")"));
      }
    }
  }
}

}  // namespace torchtpu
