// SPDX-License-Identifier: Apache-2.0
#include "in_place.h"

#include "recorder.h"

namespace torchtpu {
namespace {

// Arguments as values that do not own their tensors.
template <size_t Size>
class Lent {
 public:
  template <class... Args>
  explicit Lent(const Args&... args) : values_{lend(args)...} {}
  ~Lent() {
    for (c10::IValue& value : values_) {
      if (value.isTensor()) {
        at::Tensor tensor = std::move(value).toTensor();
        Loan::destroyBorrow(tensor);
      }
    }
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

  c10::ArrayRef<c10::IValue> values() const { return values_; }

 private:
  using Loan = c10::MaybeOwnedTraits<at::Tensor>;

  static c10::IValue lend(const at::Tensor& tensor) {
    return c10::IValue(Loan::createBorrow(tensor));
  }
  static c10::IValue lend(const at::Scalar& scalar) { return c10::IValue(scalar); }

  std::array<c10::IValue, Size> values_;
};

template <class... Args>
std::optional<torch::CppFunction> kernel(std::unique_ptr<OpInfo>& info) {
  auto call = [op = std::shared_ptr<OpInfo>(std::move(info))](at::Tensor& self,
                                                              Args... args) -> at::Tensor& {
    Lent<1 + sizeof...(Args)> lent(self, args...);
    if (!record_in_place(*op, lent.values())) {
      torch::jit::Stack stack{self, args...};
      record_op(*op, *op->handle, &stack);
    }
    return self;
  };
  return std::optional<torch::CppFunction>(std::in_place, std::move(call));
}

// The types of the arguments after the first: T a tensor, S a scalar; empty where another.
std::string argument_types(const c10::FunctionSchema& schema) {
  std::string types;
  for (size_t i = 1; i < schema.arguments().size(); ++i) {
    const c10::Type& type = *schema.arguments()[i].real_type();
    bool tensor = type.kind() == c10::TypeKind::TensorType;
    if (!tensor && type.kind() != c10::TypeKind::NumberType) {
      return "other";
    }
    types += tensor ? 'T' : 'S';
  }
  return types;
}

}  // namespace

std::optional<torch::CppFunction> in_place_kernel(std::unique_ptr<OpInfo>& info) {
  if (info->written != std::vector<int>{0} || info->returns_arg != std::vector<int>{0}) {
    return std::nullopt;
  }
  using T = const at::Tensor&;
  using S = const at::Scalar&;
  std::string types = argument_types(info->handle->schema());
  if (types.empty()) {
    return kernel<>(info);
  }
  if (types == "T") {
    return kernel<T>(info);
  }
  if (types == "S") {
    return kernel<S>(info);
  }
  if (types == "TS") {
    return kernel<T, S>(info);
  }
  if (types == "TTS") {
    return kernel<T, T, S>(info);
  }
  return std::nullopt;
}

}  // namespace torchtpu
