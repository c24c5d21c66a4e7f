// SPDX-License-Identifier: Apache-2.0
// c10d's collectives by the short way. Each gives a work, finished unless `opts.asyncOp`, or null
// where the long way is needed: other kinds of operands, or what gloo does not reduce.
#pragma once

#include "direct.h"

namespace torchtpu::distributed {

using TensorLists = std::vector<Tensors>;

WorkPtr all_reduce(Direct& direct, const Tensors& tensors, const c10d::AllreduceOptions& opts);
WorkPtr reduce(Direct& direct, const Tensors& tensors, const c10d::ReduceOptions& opts);
WorkPtr broadcast(Direct& direct, const Tensors& tensors, const c10d::BroadcastOptions& opts);
WorkPtr all_gather(Direct& direct, const at::Tensor& output, const at::Tensor& input,
                   const c10d::AllgatherOptions& opts);
WorkPtr gather(Direct& direct, const TensorLists& outputs, const Tensors& inputs, const c10d::GatherOptions& opts);
WorkPtr scatter(Direct& direct, const Tensors& outputs, const TensorLists& inputs, const c10d::ScatterOptions& opts);
WorkPtr reduce_scatter(Direct& direct, const at::Tensor& output, const at::Tensor& input,
                       const c10d::ReduceScatterOptions& opts);
// The same of lists that hold one tensor, as functional collectives call them.
WorkPtr all_gather(Direct& direct, const Tensors& outputs, const Tensors& inputs, const c10d::AllgatherOptions& opts);
WorkPtr reduce_scatter(Direct& direct, const Tensors& outputs, const Tensors& inputs,
                       const c10d::ReduceScatterOptions& opts);
// The same with a list that holds a tensor for each rank.
WorkPtr all_gather(Direct& direct, const TensorLists& outputs, const Tensors& inputs,
                   const c10d::AllgatherOptions& opts);
WorkPtr reduce_scatter(Direct& direct, const Tensors& outputs, const TensorLists& inputs,
                       const c10d::ReduceScatterOptions& opts);
WorkPtr all_to_all(Direct& direct, const at::Tensor& output, const at::Tensor& input,
                   const c10d::AllToAllOptions& opts);
// Of pieces whose rows are given, or even ones where they are not; and of lists of pieces.
WorkPtr all_to_all(Direct& direct, const at::Tensor& output, const at::Tensor& input,
                   const std::vector<int64_t>& output_rows, const std::vector<int64_t>& input_rows,
                   const c10d::AllToAllOptions& opts);
WorkPtr all_to_all(Direct& direct, const Tensors& outputs, const Tensors& inputs, const c10d::AllToAllOptions& opts);
WorkPtr barrier(Direct& direct, const c10d::BarrierOptions& opts);

}  // namespace torchtpu::distributed
