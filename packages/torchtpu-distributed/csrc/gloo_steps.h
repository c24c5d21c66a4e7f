// SPDX-License-Identifier: Apache-2.0
// What gloo is asked for on flat CPU tensors, and what is computed of its answers. Data that is
// only moved goes as bytes. As in Python's host_collectives: ranks may go different ways.
#pragma once

#include "operation.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace torchtpu::distributed {

using ReduceKind = c10d::ReduceOp::RedOpType;

bool is_reduced_by_gloo(c10::ScalarType type);
// Whether gloo reduces them as PyTorch does. It compares numbers: whether a NaN survives depends on
// the rank that has it.
bool is_whole_by_gloo(ReduceKind op, c10::ScalarType type);
// Whether `fold` reduces them.
bool is_folded(c10::ScalarType type);
// Whether an all-reduce is better one exchange of all operands than gloo's ring of two rounds.
bool is_reduced_by_exchange(const at::Tensor& operand, ReduceKind op, int size);

at::Tensor as_bytes(const at::Tensor& view);
Tensors as_bytes(const Tensors& views);

// Reduces what the ranks brought, in their order. `out` may be one of the first two.
void fold(const Tensors& rows, ReduceKind op, const at::Tensor& out);

WorkPtr broadcast_by_gloo(c10d::Backend& gloo, const at::Tensor& view, int root);
// Row i becomes that of rank i. Without a source it is this rank's row already.
std::vector<WorkPtr> gather_by_gloo(c10d::Backend& gloo, const at::Tensor& source, const Tensors& rows, int rank);
// Piece i of the source goes to rank i.
WorkPtr exchange_by_gloo(c10d::Backend& gloo, const at::Tensor& source, const at::Tensor& target);
// The pieces for the others go to them, and those for this rank come into the rows of others; of its
// own nothing is copied.
WorkPtr exchange_lists_by_gloo(c10d::Backend& gloo, const Tensors& pieces, const at::Tensor& received,
                               const std::vector<int64_t>& bytes_received, int rank);
// Of two ranks the root gets, in `received`, what the other one has `sent`; each has one of these.
WorkPtr bring_by_gloo(c10d::Backend& gloo, const at::Tensor& sent, const at::Tensor& received, int root);
// Every rank sends its operand to every other one; `end` reduces them all.
WorkPtr reduce_by_exchange(c10d::Backend& gloo, const at::Tensor& target, ReduceKind op, int rank, int size,
                           Operation::End& end);

}  // namespace torchtpu::distributed
