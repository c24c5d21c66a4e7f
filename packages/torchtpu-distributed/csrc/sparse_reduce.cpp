// SPDX-License-Identifier: Apache-2.0
// All-reduce of sparse tensors of the device, by gloo on copies on the host: gloo finds out how many
// positions each rank has. No other collective takes sparse tensors, on any device.
#include "backend.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

namespace torchtpu::distributed {
namespace {

using Reduced = std::tuple<Tensors, WorkPtr>;

Reduced all_reduce_sparse(at::TensorList tensors, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                          const c10::intrusive_ptr<c10d::ReduceOp>& op,
                          const std::optional<at::Tensor>& /*sparse_indices*/, bool async_op, int64_t timeout_ms) {
  c10d::AllreduceOptions opts;
  opts.reduceOp = *op;
  opts.asyncOp = async_op;
  opts.timeout = std::chrono::milliseconds(timeout_ms);
  Tensors reduced = tensors.vec();
  WorkPtr work = group->getBackend(c10::DeviceType::PrivateUse1)->allreduce_sparse(reduced, opts);
  return {std::move(reduced), std::move(work)};
}

}  // namespace

TORCH_LIBRARY_IMPL(c10d, SparsePrivateUse1, library) {
  library.impl("allreduce_", &all_reduce_sparse);
}

}  // namespace torchtpu::distributed
