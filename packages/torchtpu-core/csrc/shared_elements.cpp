// SPDX-License-Identifier: Apache-2.0
#include "shared_elements.h"

#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <tuple>

namespace torchtpu {

bool writes_expanded(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  for (int index : op.written) {
    const c10::IValue& value = args[static_cast<size_t>(index)];
    if (value.isTensor() &&
        at::has_internal_overlap(value.toTensor()) == at::MemOverlap::Yes) {
      return true;
    }
  }
  return false;
}

bool writes_elements_twice(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  if (op.written.size() != 1 || !args[static_cast<size_t>(op.written[0])].isTensorList()) {
    return false;
  }
  using Span = std::tuple<const void*, int64_t, int64_t>;  // storage, first element, end
  c10::SmallVector<Span, 64> spans;
  for (const c10::IValue& item : args[static_cast<size_t>(op.written[0])].toListRef()) {
    const at::Tensor& tensor = item.toTensor();
    if (tensor.numel() != 0) {
      auto end = tensor.storage_offset() + 1;
      for (int64_t d = 0; d < tensor.dim(); ++d) {
        end += (tensor.size(d) - 1) * tensor.stride(d);
      }
      spans.emplace_back(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(),
                         tensor.storage_offset(), end);
    }
  }
  std::sort(spans.begin(), spans.end());
  return std::adjacent_find(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
           return std::get<0>(a) == std::get<0>(b) && std::get<1>(b) < std::get<2>(a);
         }) != spans.end();
}

void check_sharing(Sharing allowed, c10::ArrayRef<const at::Tensor*> written,
                   c10::ArrayRef<const at::Tensor*> operands) {
  for (const at::Tensor* tensor : written) {
    const at::Tensor& out = *tensor;
    bool is_self = allowed == Sharing::kItself;  // the first that is the written tensor
    for (const at::Tensor* operand : operands) {
      if (allowed == Sharing::kExact) {
        at::assert_no_partial_overlap(out, *operand);
      } else if (is_self && operand->is_same(out)) {
        is_self = false;
      } else {
        at::assert_no_overlap(out, *operand);
      }
    }
  }
}

}  // namespace torchtpu
