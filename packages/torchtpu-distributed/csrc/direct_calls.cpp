// SPDX-License-Identifier: Apache-2.0
#include "direct_calls.h"

#include <ATen/ops/add.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>

namespace torchtpu::distributed {
namespace {

using Op = c10d::ReduceOp::RedOpType;
using End = Direct::End;

// How much longer gloo waits than a collective may take.
constexpr std::chrono::seconds kPatienceOfGloo{60};
// Above this, an all-gather is a broadcast of each rank, which needs no second copy.
constexpr size_t kGatherByCopyBytes = 1 << 16;
// Up to as many bytes of copies on each rank, an all-reduce is one exchange of all operands, and not
// gloo's ring of two rounds. As in Python's host_collectives.
constexpr int64_t kReduceByExchangeBytes = 2 << 20;

// As Python's calls.Collective names it; null where the long way prepares the operands.
const char* name_of(const c10d::ReduceOp& op, const at::Tensor& tensor) {
  switch (op.op_) {
    case Op::SUM:
      return "sum";
    case Op::AVG:  // of integers: rounded
      return at::isFloatingType(tensor.scalar_type()) ? "avg" : nullptr;
    case Op::PRODUCT:
      return "product";
    case Op::MIN:
      return "min";
    case Op::MAX:
      return "max";
    default:
      return nullptr;
  }
}

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

// gloo compares numbers: whether a NaN survives depends on the rank that has it.
bool is_nan_lost_by_gloo(Op op, c10::ScalarType type) {
  return (op == Op::MIN || op == Op::MAX) && at::isFloatingType(type);
}

at::Tensor as_bytes(const at::Tensor& view) { return view.view(at::kByte); }

WorkPtr broadcast_of(c10d::Backend& gloo, const at::Tensor& view, int root) {
  c10d::BroadcastOptions opts;
  opts.rootRank = root;
  Tensors tensors{as_bytes(view)};
  return gloo.broadcast(tensors, opts);
}

// Reduces what the ranks brought, in their order. `out` may be one of the first two.
void fold(const Tensors& rows, Op op, const at::Tensor& out) {
  at::Tensor result = out;
  if (rows.size() == 1) {
    result.copy_(rows[0]);
  }
  for (size_t i = 1; i < rows.size(); ++i) {
    const at::Tensor& left = i == 1 ? rows[0] : out;
    switch (op) {
      case Op::PRODUCT:
        at::mul_out(result, left, rows[i]);
        break;
      case Op::MIN:
        at::minimum_out(result, left, rows[i]);
        break;
      case Op::MAX:
        at::maximum_out(result, left, rows[i]);
        break;
      default:
        at::add_out(result, left, rows[i]);
    }
  }
  if (op == Op::AVG) {
    result.div_(static_cast<int64_t>(rows.size()));
  }
}

bool is_reduced_by_exchange(const at::Tensor& operand, Op op, int size) {
  int64_t bytes = static_cast<int64_t>(operand.nbytes()) * (size - 1) * (size == 2 ? 1 : 2);
  bool is_better = operand.numel() >= size || is_nan_lost_by_gloo(op, operand.scalar_type());
  return size > 1 && is_better && bytes <= kReduceByExchangeBytes;
}

// Every rank sends its operand to every other one; `end` reduces them all.
WorkPtr reduce_by_exchange(c10d::Backend& gloo, const at::Tensor& target, Op op, int rank, int size, End& end) {
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

// Without a source it is this rank's row of the target already.
std::vector<WorkPtr> gather(c10d::Backend& gloo, const at::Tensor& source, const at::Tensor& target, int rank,
                            int size) {
  at::Tensor rows = target.view({size, -1});
  if (rows[rank].nbytes() > kGatherByCopyBytes) {
    if (source.defined()) {
      rows[rank].copy_(source);
    }
    std::vector<WorkPtr> works;
    for (int i = 0; i < size; ++i) {
      works.push_back(broadcast_of(gloo, rows[i], i));
    }
    return works;
  }
  std::vector<Tensors> outputs(1);
  for (int i = 0; i < size; ++i) {
    outputs[0].push_back(as_bytes(rows[i]));
  }
  Tensors inputs{as_bytes(source.defined() ? source : rows[rank].clone())};
  return {gloo.allgather(outputs, inputs)};
}

// Whether a tensor is one rank's piece of another, as FSDP gathers.
bool is_piece(const at::Tensor& piece, const at::Tensor& whole, int rank) {
  return piece.storage().is_alias_of(whole.storage()) && piece.is_contiguous() && whole.is_contiguous() &&
         piece.storage_offset() == whole.storage_offset() + rank * piece.numel();
}

WorkPtr exchange(c10d::Backend& gloo, const at::Tensor& source, const at::Tensor& target) {
  at::Tensor output = as_bytes(target);
  at::Tensor input = as_bytes(source);
  std::vector<int64_t> even;
  return gloo.alltoall_base(output, input, even, even);
}

bool is_multiple(const at::Tensor& whole, const at::Tensor& piece, int size) {
  return whole.numel() == size * piece.numel() && whole.scalar_type() == piece.scalar_type();
}

}  // namespace

WorkPtr all_reduce(Direct& direct, const Tensors& tensors, const c10d::AllreduceOptions& opts) {
  if (tensors.size() != 1 || !is_reduced_by_gloo(tensors[0].scalar_type())) {
    return nullptr;
  }
  const char* op = name_of(opts.reduceOp, tensors[0]);
  if (op == nullptr) {
    return nullptr;
  }
  Op reduction = opts.reduceOp.op_;
  if (is_nan_lost_by_gloo(reduction, tensors[0].scalar_type()) &&
      !is_reduced_by_exchange(tensors[0], reduction, direct.size())) {
    return nullptr;
  }
  Request request{"all_reduce", op, -1, &tensors[0], &tensors[0], false, true};
  request.later = opts.asyncOp;
  request.timeout = opts.timeout;
  return direct.run(request, [reduction, rank = direct.rank(), size = direct.size()](
                                 c10d::Backend& gloo, const at::Tensor&, const at::Tensor& target, End& end) {
    if (is_reduced_by_exchange(target, reduction, size)) {
      return std::vector<WorkPtr>{reduce_by_exchange(gloo, target, reduction, rank, size, end)};
    }
    c10d::AllreduceOptions summing;
    summing.reduceOp = reduction == Op::AVG ? Op::SUM : reduction;
    if (reduction == Op::AVG) {
      end = [size, target] { target.div_(size); };
    }
    Tensors views{target};
    return std::vector<WorkPtr>{gloo.allreduce(views, summing)};
  });
}

WorkPtr reduce(Direct& direct, const Tensors& tensors, const c10d::ReduceOptions& opts) {
  auto root = static_cast<int>(opts.rootRank);
  if (tensors.size() != 1 || root < 0 || root >= direct.size() || !is_reduced_by_gloo(tensors[0].scalar_type())) {
    return nullptr;
  }
  const char* op = name_of(opts.reduceOp, tensors[0]);
  Op reduction = opts.reduceOp.op_;
  if (op == nullptr || is_nan_lost_by_gloo(reduction, tensors[0].scalar_type())) {
    return nullptr;
  }
  bool mine = root == direct.rank();
  Request request{"reduce", op, root, &tensors[0], &tensors[0], !mine, mine};
  request.later = opts.asyncOp;
  request.timeout = opts.timeout;
  return direct.run(request, [=, size = direct.size()](c10d::Backend& gloo, const at::Tensor& source,
                                                       const at::Tensor& target, End& end) {
    c10d::ReduceOptions summing;
    summing.reduceOp = reduction == Op::AVG ? Op::SUM : reduction;
    summing.rootRank = root;
    if (mine && reduction == Op::AVG) {
      end = [size, target] { target.div_(size); };
    }
    Tensors views{mine ? target : source.clone()};  // gloo writes to what it is given
    return std::vector<WorkPtr>{gloo.reduce(views, summing)};
  });
}

WorkPtr all_gather(Direct& direct, const Tensors& outputs, const Tensors& inputs, const c10d::AllgatherOptions& opts) {
  return outputs.size() == 1 && inputs.size() == 1 ? all_gather(direct, outputs[0], inputs[0], opts) : nullptr;
}

WorkPtr reduce_scatter(Direct& direct, const Tensors& outputs, const Tensors& inputs,
                       const c10d::ReduceScatterOptions& opts) {
  return outputs.size() == 1 && inputs.size() == 1 ? reduce_scatter(direct, outputs[0], inputs[0], opts) : nullptr;
}

WorkPtr broadcast(Direct& direct, const Tensors& tensors, const c10d::BroadcastOptions& opts) {
  auto root = static_cast<int>(opts.rootRank);
  if (tensors.size() != 1 || root < 0 || root >= direct.size()) {
    return nullptr;  // the ordinary way says what is wrong
  }
  bool mine = root == direct.rank();
  Request request{"broadcast", "", root, &tensors[0], &tensors[0], mine, !mine};
  request.later = opts.asyncOp;
  request.timeout = opts.timeout;
  return direct.run(request, [mine, root](c10d::Backend& gloo, const at::Tensor& source, const at::Tensor& target,
                                          End&) {
    return std::vector<WorkPtr>{broadcast_of(gloo, mine ? source : target, root)};
  });
}

WorkPtr all_gather(Direct& direct, const at::Tensor& output, const at::Tensor& input,
                   const c10d::AllgatherOptions& opts) {
  if (!is_multiple(output, input, direct.size())) {
    return nullptr;
  }
  bool in_place = is_piece(input, output, direct.rank());
  Request request{"all_gather", "", -1, &input, &output, !in_place, true, in_place};
  request.later = opts.asyncOp;
  request.timeout = opts.timeout;
  return direct.run(request, [rank = direct.rank(), size = direct.size()](
                                 c10d::Backend& gloo, const at::Tensor& source, const at::Tensor& target, End&) {
    return gather(gloo, source, target, rank, size);
  });
}

WorkPtr reduce_scatter(Direct& direct, const at::Tensor& output, const at::Tensor& input,
                       const c10d::ReduceScatterOptions& opts) {
  const char* op = name_of(opts.reduceOp, input);
  if (op == nullptr || !is_reduced_by_gloo(input.scalar_type()) ||
      !is_multiple(input, output, direct.size())) {
    return nullptr;
  }
  Request request{"reduce_scatter", op, -1, &input, &output};
  request.later = opts.asyncOp;
  request.timeout = opts.timeout;
  return direct.run(request, [reduction = opts.reduceOp.op_, size = direct.size()](
                                 c10d::Backend& gloo, const at::Tensor& source, const at::Tensor& target, End& end) {
    at::Tensor pieces = at::empty_like(source);
    end = [pieces, target, reduction, size] { fold(pieces.view({size, -1}).unbind(), reduction, target); };
    return std::vector<WorkPtr>{exchange(gloo, source, pieces)};
  });
}

WorkPtr all_to_all(Direct& direct, const at::Tensor& output, const at::Tensor& input,
                   const c10d::AllToAllOptions& opts) {
  bool even = input.dim() > 0 && output.dim() > 0 && input.size(0) % direct.size() == 0 &&
              output.size(0) % direct.size() == 0 && is_multiple(input, output, 1);
  if (!even) {
    return nullptr;
  }
  Request request{"all_to_all", "", -1, &input, &output};
  request.later = opts.asyncOp;
  request.timeout = opts.timeout;
  return direct.run(request, [](c10d::Backend& gloo, const at::Tensor& source, const at::Tensor& target, End&) {
    return std::vector<WorkPtr>{exchange(gloo, source, target)};
  });
}

WorkPtr barrier(Direct& direct, const c10d::BarrierOptions& opts) {
  Request request{"barrier"};
  request.later = opts.asyncOp;
  request.timeout = opts.timeout;
  return direct.run(request, [timeout = opts.timeout](c10d::Backend& gloo, const at::Tensor&, const at::Tensor&, End&) {
    c10d::BarrierOptions patient;  // the watch must be the first to see that the time is up
    patient.timeout = timeout.count() > 0 ? timeout + kPatienceOfGloo : timeout;
    return std::vector<WorkPtr>{gloo.barrier(patient)};
  });
}

}  // namespace torchtpu::distributed
