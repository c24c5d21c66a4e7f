// SPDX-License-Identifier: Apache-2.0
#include "gloo_steps.h"

#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>

namespace torchtpu::distributed {
namespace {

// Above this, an all-gather is a broadcast of each rank, which needs no second copy.
constexpr size_t kGatherByCopyBytes = 1 << 16;
// Up to as many bytes of copies on each rank, an all-reduce is one exchange of all operands.
constexpr int64_t kReduceByExchangeBytes = 2 << 20;

}  // namespace

bool is_reduced_by_gloo(c10::ScalarType type) {
  switch (type) {
    case c10::kFloat:
    case c10::kDouble:
    case c10::kHalf:
    case c10::kBFloat16:
    case c10::kChar:
    case c10::kByte:
    case c10::kInt:
    case c10::kLong:
      return true;
    default:
      return false;
  }
}

bool is_whole_by_gloo(ReduceKind op, c10::ScalarType type) {
  bool compares = op == ReduceKind::MIN || op == ReduceKind::MAX;
  return is_reduced_by_gloo(type) && !(compares && at::isFloatingType(type));
}

bool is_folded(c10::ScalarType type) { return is_reduced_by_gloo(type) || type == c10::kShort || type == c10::kBool; }

bool is_reduced_by_exchange(const at::Tensor& operand, ReduceKind op, int size) {
  int64_t bytes = static_cast<int64_t>(operand.nbytes()) * (size - 1) * (size == 2 ? 1 : 2);
  bool is_better = operand.numel() >= size || !is_whole_by_gloo(op, operand.scalar_type());
  return size > 1 && is_better && bytes <= kReduceByExchangeBytes;
}

at::Tensor as_bytes(const at::Tensor& view) { return view.view(at::kByte); }

Tensors as_bytes(const Tensors& views) {
  Tensors bytes;
  for (const at::Tensor& view : views) {
    bytes.push_back(as_bytes(view));
  }
  return bytes;
}

void fold(const Tensors& rows, ReduceKind op, const at::Tensor& out) {
  at::Tensor result = out;
  if (rows.size() == 1) {
    result.copy_(rows[0]);
  }
  for (size_t i = 1; i < rows.size(); ++i) {
    const at::Tensor& left = i == 1 ? rows[0] : out;
    switch (op) {
      case ReduceKind::PRODUCT:
        at::mul_out(result, left, rows[i]);
        break;
      case ReduceKind::MIN:
        at::minimum_out(result, left, rows[i]);
        break;
      case ReduceKind::MAX:
        at::maximum_out(result, left, rows[i]);
        break;
      default:
        at::add_out(result, left, rows[i]);
    }
  }
  if (op == ReduceKind::AVG) {
    result.div_(static_cast<int64_t>(rows.size()));
  }
}

WorkPtr broadcast_by_gloo(c10d::Backend& gloo, const at::Tensor& view, int root) {
  c10d::BroadcastOptions opts;
  opts.rootRank = root;
  Tensors tensors{as_bytes(view)};
  return gloo.broadcast(tensors, opts);
}

std::vector<WorkPtr> gather_by_gloo(c10d::Backend& gloo, const at::Tensor& source, const Tensors& rows, int rank) {
  if (rows[rank].nbytes() > kGatherByCopyBytes) {
    if (source.defined()) {
      rows[rank].copy_(source);
    }
    std::vector<WorkPtr> works;
    for (size_t i = 0; i < rows.size(); ++i) {
      works.push_back(broadcast_by_gloo(gloo, rows[i], static_cast<int>(i)));
    }
    return works;
  }
  std::vector<Tensors> outputs{as_bytes(rows)};
  Tensors inputs{as_bytes(source.defined() ? source : rows[rank].clone())};
  return {gloo.allgather(outputs, inputs)};
}

WorkPtr exchange_by_gloo(c10d::Backend& gloo, const at::Tensor& source, const at::Tensor& target) {
  at::Tensor output = as_bytes(target);
  at::Tensor input = as_bytes(source);
  std::vector<int64_t> even;
  return gloo.alltoall_base(output, input, even, even);
}

WorkPtr exchange_lists_by_gloo(c10d::Backend& gloo, const Tensors& pieces, const at::Tensor& received,
                               const std::vector<int64_t>& bytes_received, int rank) {
  std::vector<int64_t> sent_bytes;
  Tensors sent;
  for (size_t i = 0; i < pieces.size(); ++i) {
    bool own = i == static_cast<size_t>(rank);
    sent_bytes.push_back(own ? 0 : static_cast<int64_t>(pieces[i].nbytes()));
    if (!own) {
      sent.push_back(as_bytes(pieces[i]));
    }
  }
  std::vector<int64_t> received_bytes = bytes_received;
  received_bytes[rank] = 0;
  at::Tensor output = as_bytes(received);
  at::Tensor input = sent.size() == 1 ? sent[0] : sent.empty() ? output : at::cat(sent);
  return gloo.alltoall_base(output, input, received_bytes, sent_bytes);
}

WorkPtr bring_by_gloo(c10d::Backend& gloo, const at::Tensor& sent, const at::Tensor& received, int root) {
  bool mine = received.defined();
  int64_t nbytes = static_cast<int64_t>((mine ? received : sent).nbytes());
  std::vector<int64_t> out(2, 0);
  std::vector<int64_t> in(2, 0);
  (mine ? out[1 - root] : in[root]) = nbytes;
  at::Tensor nothing = at::empty({0}, at::TensorOptions().dtype(at::kByte));
  at::Tensor output = mine ? as_bytes(received) : nothing;
  at::Tensor input = mine ? nothing : as_bytes(sent);
  return gloo.alltoall_base(output, input, out, in);
}

WorkPtr reduce_by_exchange(c10d::Backend& gloo, const at::Tensor& target, ReduceKind op, int rank, int size,
                           Operation::End& end) {
  at::Tensor sent = size == 2 ? target : target.repeat({size - 1});
  at::Tensor received = at::empty_like(sent);
  Tensors rows = received.view({size - 1, -1}).unbind();
  rows.insert(rows.begin() + rank, sent.slice(0, 0, target.numel()));
  end = [rows = std::move(rows), op, target] { fold(rows, op, target); };
  std::vector<int64_t> counts(size, static_cast<int64_t>(target.nbytes()));
  counts[rank] = 0;
  std::vector<int64_t> same = counts;  // gloo moves from both
  at::Tensor output = as_bytes(received);
  at::Tensor input = as_bytes(sent);
  return gloo.alltoall_base(output, input, counts, same);
}

}  // namespace torchtpu::distributed
