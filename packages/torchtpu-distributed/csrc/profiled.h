// SPDX-License-Identifier: Apache-2.0
// What torch.profiler shows of a collective: a range `<backend>:<operation>`, with the name that the
// user gave the backend, from its call until the call returns, and in it PyTorch's
// `record_param_comms`, from which trace analysers read the group, the operation, the sizes and the
// dtype. The range has the inputs and counts as asynchronous, as those of gloo and NCCL do. How long
// an asynchronous one runs behind is in the ranges of its transport.
#pragma once

#include "pending.h"

#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <optional>

namespace torchtpu::distributed {

// An operation as the flight recorder and trace analysers name it.
struct OperationName {
  const char* shown;
  const char* analysed;
};

namespace profiled {
constexpr OperationName kAllGather{"all_gather", "all_gather"};
constexpr OperationName kAllGatherBase{"all_gather_into_tensor", "_allgather_base"};
constexpr OperationName kAllGatherMany{"all_gather_into_tensor_coalesced", "allgather_into_tensor_coalesced"};
constexpr OperationName kAllReduce{"all_reduce", "allreduce"};
constexpr OperationName kAllReduceMany{"all_reduce_coalesced", "allreduce_coalesced"};
constexpr OperationName kAllToAll{"all_to_all", "all_to_all"};
constexpr OperationName kAllToAllBase{"all_to_all_single", "all_to_allv"};
constexpr OperationName kBarrier{"barrier", "barrier"};
constexpr OperationName kBroadcast{"broadcast", "broadcast"};
constexpr OperationName kGather{"gather", "gather"};
constexpr OperationName kReceive{"recv", "recv"};
constexpr OperationName kReduce{"reduce", "reduce"};
constexpr OperationName kReduceScatter{"reduce_scatter", "reduce_scatter"};
constexpr OperationName kReduceScatterBase{"reduce_scatter_tensor", "_reduce_scatter_base"};
constexpr OperationName kReduceScatterMany{"reduce_scatter_tensor_coalesced", "reduce_scatter_tensor_coalesced"};
constexpr OperationName kScatter{"scatter", "scatter"};
constexpr OperationName kSend{"send", "send"};
}  // namespace profiled

// What it works on; split sizes where it has some.
struct Operands {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  std::vector<int64_t> input_splits;
  std::vector<int64_t> output_splits;
};

// While this lives, nothing is recorded on its thread unless somebody profiles. Gloo describes its
// operands, in several microseconds, wherever anybody listens, as ranges.h does all the time.
class Unrecorded {
 public:
  Unrecorded() {
    if (!at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION)) {
      off_.emplace();
    }
  }
  Unrecorded(const Unrecorded&) = delete;
  Unrecorded& operator=(const Unrecorded&) = delete;

 private:
  std::optional<at::DisableRecordFunctionGuard> off_;
};

// The operation is under way while this lives. `operands()` is asked for them where somebody
// profiles, and elsewhere it costs a look at a flag.
class Profiled {
 public:
  template <typename Ask>
  Profiled(OperationName name, const c10d::Backend& backend, const GroupState& group, Ask&& operands) {
    if (auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION)) {
      begin(std::move(*callbacks), name, backend, group, operands());
    } else {
      off_.emplace();
    }
  }
  Profiled(const Profiled&) = delete;
  Profiled& operator=(const Profiled&) = delete;

 private:
  void begin(at::StepCallbacks&& callbacks, OperationName name, const c10d::Backend& backend,
             const GroupState& group, const Operands& operands);

  std::optional<at::DisableRecordFunctionGuard> off_;  // as Unrecorded
  std::optional<at::RecordFunction> range_;
  std::optional<c10::DebugInfoGuard> info_;
  std::optional<at::RecordFunction> comms_;
};

// All tensors of several lists.
inline std::vector<at::Tensor> joined(const std::vector<std::vector<at::Tensor>>& lists) {
  std::vector<at::Tensor> all;
  for (const auto& list : lists) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

}  // namespace torchtpu::distributed
