// SPDX-License-Identifier: Apache-2.0
// c10d's collectives by the short way. Each gives a work, finished unless `opts.asyncOp`, or null
// where the long way is needed: other kinds of operands, or what gloo does not reduce.
#pragma once

#include "direct.h"

namespace torchtpu::distributed {

using Tensors = std::vector<at::Tensor>;

WorkPtr all_reduce(Direct& direct, const Tensors& tensors, const c10d::AllreduceOptions& opts);
WorkPtr reduce(Direct& direct, const Tensors& tensors, const c10d::ReduceOptions& opts);
WorkPtr broadcast(Direct& direct, const Tensors& tensors, const c10d::BroadcastOptions& opts);
WorkPtr all_gather(Direct& direct, const at::Tensor& output, const at::Tensor& input,
                   const c10d::AllgatherOptions& opts);
WorkPtr reduce_scatter(Direct& direct, const at::Tensor& output, const at::Tensor& input,
                       const c10d::ReduceScatterOptions& opts);
// The same of lists that hold one tensor, as functional collectives call them.
WorkPtr all_gather(Direct& direct, const Tensors& outputs, const Tensors& inputs, const c10d::AllgatherOptions& opts);
WorkPtr reduce_scatter(Direct& direct, const Tensors& outputs, const Tensors& inputs,
                       const c10d::ReduceScatterOptions& opts);
WorkPtr all_to_all(Direct& direct, const at::Tensor& output, const at::Tensor& input,
                   const c10d::AllToAllOptions& opts);
WorkPtr barrier(Direct& direct, const c10d::BarrierOptions& opts);

}  // namespace torchtpu::distributed
