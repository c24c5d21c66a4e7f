// SPDX-License-Identifier: Apache-2.0
#include "lent.h"

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
torch::jit::Stack run_boxed(const OpInfo& op, const Args&... args) {
  torch::jit::Stack stack{args...};
  record_op(op, *op.handle, &stack);
  return stack;
}

// Of an op that writes and gives back its first argument.
template <class... Args>
torch::CppFunction in_place_kernel(std::unique_ptr<OpInfo>& info) {
  auto call = [op = std::shared_ptr<OpInfo>(std::move(info))](at::Tensor& self,
                                                              Args... args) -> at::Tensor& {
    Lent<1 + sizeof...(Args)> lent(self, args...);
    if (!record_lent(*op, lent.values())) {
      run_boxed(*op, self, args...);
    }
    return self;
  };
  return torch::CppFunction(std::move(call));
}

// Of an op that returns a new tensor.
template <class... Args>
torch::CppFunction plain_kernel(std::unique_ptr<OpInfo>& info) {
  auto call = [op = std::shared_ptr<OpInfo>(std::move(info))](const at::Tensor& self,
                                                              Args... args) -> at::Tensor {
    Lent<1 + sizeof...(Args)> lent(self, args...);
    if (auto results = record_lent(*op, lent.values())) {
      return results->empty() ? at::Tensor() : std::move((*results)[0]);
    }
    return run_boxed(*op, self, args...).back().toTensor();
  };
  return torch::CppFunction(std::move(call));
}

template <class... Args>
torch::CppFunction kernel(std::unique_ptr<OpInfo>& info) {
  return info->written.empty() ? plain_kernel<Args...>(info) : in_place_kernel<Args...>(info);
}

// The types of the arguments after the first: T a tensor, S a scalar; nothing if there are others.
std::optional<std::string> argument_types(const c10::FunctionSchema& schema) {
  std::string types;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    c10::TypeKind kind = schema.arguments()[i].real_type()->kind();
    bool tensor = kind == c10::TypeKind::TensorType;
    if (!tensor && (kind != c10::TypeKind::NumberType || i == 0)) {
      return std::nullopt;
    }
    types += i == 0 ? "" : tensor ? "T" : "S";
  }
  return schema.arguments().empty() ? std::nullopt : std::optional(types);
}

// Whether an op returns one tensor, a new one or its first argument written.
bool returns_one_tensor(const OpInfo& op) {
  const auto& returns = op.handle->schema().returns();
  bool in_place = op.written == std::vector<int>{0} && op.returns_arg == std::vector<int>{0};
  bool plain = op.written.empty() && op.returns_arg == std::vector<int>{-1};
  return (in_place || plain) && returns.size() == 1 &&
         returns[0].type()->kind() == c10::TypeKind::TensorType;
}

}  // namespace

std::optional<torch::CppFunction> lending_kernel(std::unique_ptr<OpInfo>& info) {
  auto types = argument_types(info->handle->schema());
  if (!types || !returns_one_tensor(*info)) {
    return std::nullopt;
  }
  using T = const at::Tensor&;
  using S = const at::Scalar&;
  if (types->empty()) {
    return kernel<>(info);
  }
  if (*types == "T") {
    return kernel<T>(info);
  }
  if (*types == "S") {
    return kernel<S>(info);
  }
  if (*types == "TS") {
    return kernel<T, S>(info);
  }
  if (*types == "TTS") {
    return kernel<T, T, S>(info);
  }
  return std::nullopt;
}

}  // namespace torchtpu
