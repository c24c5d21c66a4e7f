// SPDX-License-Identifier: Apache-2.0
#include "profiled.h"

#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

namespace torchtpu::distributed {
namespace {

int64_t elements_of(const std::vector<at::Tensor>& tensors) {
  int64_t sum = 0;
  for (const at::Tensor& tensor : tensors) {
    sum += tensor.numel();
  }
  return sum;
}

at::ScalarType dtype_of(const Operands& operands) {
  const auto& some = operands.inputs.empty() ? operands.outputs : operands.inputs;
  return some.empty() ? at::kByte : some[0].scalar_type();
}

// Between neighbours of an even list of ranks; 0 where it is not even.
int stride_of(const std::vector<int>& ranks) {
  int stride = ranks.size() > 1 ? ranks[1] - ranks[0] : 1;
  for (size_t i = 1; i < ranks.size(); ++i) {
    if (ranks[i] - ranks[i - 1] != stride) {
      return 0;
    }
  }
  return stride;
}

}  // namespace

void Profiled::begin(at::StepCallbacks&& callbacks, OperationName name, const c10d::Backend& backend,
                     const GroupState& group, const Operands& operands) {
  bool is_message = name.shown == profiled::kSend.shown || name.shown == profiled::kReceive.shown;
  auto number = static_cast<int64_t>((is_message ? group.messages : group.seq).load() + 1);
  auto sequence = std::make_tuple(number, is_message);
  auto group_name = std::make_tuple(group.name, backend.getGroupDesc());
  int start = group.ranks.empty() ? 0 : group.ranks.front();
  int stride = stride_of(group.ranks);

  range_.emplace(at::RecordScope::USER_SCOPE);
  range_->_setAsync();  // as those of PyTorch's own backends
  std::vector<c10::IValue> inputs(operands.inputs.begin(), operands.inputs.end());
  range_->before(backend.getBackendName() + ':' + name.shown, c10::ArrayRef<const c10::IValue>(inputs.data(), inputs.size()));

  auto details = std::make_shared<torch::ParamCommsDebugInfo>(
      group_name, backend.getRank(), std::string(name.analysed), elements_of(operands.inputs),
      elements_of(operands.outputs), dtype_of(operands), operands.input_splits, operands.output_splits, start, stride, backend.getSize());
  details->setSequenceInfo(number, is_message);
  info_.emplace(c10::DebugInfoKind::PARAM_COMMS_INFO, details);

  comms_.emplace(std::move(callbacks));
  if (comms_->needsInputs()) {
    std::initializer_list<const c10::IValue> arguments{
        c10::IValue(operands.inputs), sequence, group_name, backend.getRank(), std::string(name.analysed),
        operands.input_splits, operands.output_splits, start, stride, backend.getSize(), true};
    comms_->before(at::kParamCommsCallName, c10::ArrayRef<const c10::IValue>(arguments));
  } else {
    comms_->before(at::kParamCommsCallName);
  }
  if (comms_->needsOutputs()) {
    comms_->setOutputs(std::vector<c10::IValue>(1, c10::IValue(operands.outputs)));
  }
}

}  // namespace torchtpu::distributed
