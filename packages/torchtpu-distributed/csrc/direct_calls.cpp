// SPDX-License-Identifier: Apache-2.0
#include "direct_calls.h"

#include "gloo_steps.h"
#include "pieces.h"

#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <numeric>

namespace torchtpu::distributed {
namespace {

using End = Direct::End;
using Works = std::vector<WorkPtr>;

// How much longer gloo waits than a collective may take.
constexpr std::chrono::seconds kPatienceOfGloo{60};

// As Python's calls.Collective names it; null where the long way prepares the operands.
const char* name_of(const c10d::ReduceOp& op, const at::Tensor& tensor) {
  switch (op.op_) {
    case ReduceKind::SUM:
      return "sum";
    case ReduceKind::AVG:  // of integers: rounded
      return at::isFloatingType(tensor.scalar_type()) ? "avg" : nullptr;
    case ReduceKind::PRODUCT:
      return "product";
    case ReduceKind::MIN:
      return "min";
    case ReduceKind::MAX:
      return "max";
    default:
      return nullptr;
  }
}

// Whether the caller goes on meanwhile, and how long it may take.
template <typename Options>
Request as_asked(Request request, const Options& opts) {
  request.later = opts.asyncOp;
  request.timeout = opts.timeout;
  return request;
}

// Whether a tensor is one rank's piece of another, as FSDP gathers.
bool is_piece(const at::Tensor& piece, const at::Tensor& whole, int rank) {
  return piece.storage().is_alias_of(whole.storage()) && piece.is_contiguous() && whole.is_contiguous() &&
         piece.storage_offset() == whole.storage_offset() + rank * piece.numel();
}

bool is_multiple(const at::Tensor& whole, const at::Tensor& piece, int size) {
  return whole.numel() == size * piece.numel() && whole.scalar_type() == piece.scalar_type();
}

// Whether a list has a tensor of one shape for each rank, as long as this rank's own.
bool is_even(const TensorLists& lists, const at::Tensor& own, int size) {
  if (lists.size() != 1 || lists[0].size() != static_cast<size_t>(size)) {
    return false;
  }
  const Tensors& list = lists[0];
  return std::all_of(list.begin(), list.end(), [&](const at::Tensor& each) {
    return each.sizes() == list[0].sizes() && is_multiple(each, own, 1) && each.device() == own.device();
  });
}

}  // namespace

WorkPtr all_reduce(Direct& direct, const Tensors& tensors, const c10d::AllreduceOptions& opts) {
  if (tensors.size() != 1 || !is_folded(tensors[0].scalar_type())) {
    return nullptr;
  }
  const char* op = name_of(opts.reduceOp, tensors[0]);
  if (op == nullptr) {
    return nullptr;
  }
  ReduceKind reduction = opts.reduceOp.op_;
  if (!is_whole_by_gloo(reduction, tensors[0].scalar_type()) &&
      !is_reduced_by_exchange(tensors[0], reduction, direct.size())) {
    return nullptr;
  }
  Request request = as_asked({.kind = "all_reduce", .op = op, .operands = tensors, .results = tensors}, opts);
  request.reads = false;
  return direct.run(request, [reduction, rank = direct.rank(), size = direct.size()](
                                 c10d::Backend& gloo, const Tensors&, const Tensors& targets, End& end) {
    if (is_reduced_by_exchange(targets[0], reduction, size)) {
      return Works{reduce_by_exchange(gloo, targets[0], reduction, rank, size, end)};
    }
    c10d::AllreduceOptions summing;
    summing.reduceOp = reduction == ReduceKind::AVG ? ReduceKind::SUM : reduction;
    if (reduction == ReduceKind::AVG) {
      end = [size, target = targets[0]] { target.div_(size); };
    }
    Tensors views = targets;
    return Works{gloo.allreduce(views, summing)};
  });
}

WorkPtr reduce(Direct& direct, const Tensors& tensors, const c10d::ReduceOptions& opts) {
  auto root = static_cast<int>(opts.rootRank);
  if (tensors.size() != 1 || root < 0 || root >= direct.size()) {
    return nullptr;
  }
  const char* op = name_of(opts.reduceOp, tensors[0]);
  ReduceKind reduction = opts.reduceOp.op_;
  bool by_gloo = is_whole_by_gloo(reduction, tensors[0].scalar_type());
  if (op == nullptr || !(by_gloo || (direct.size() == 2 && is_folded(tensors[0].scalar_type())))) {
    return nullptr;
  }
  bool mine = root == direct.rank();
  Request request = as_asked({.kind = "reduce", .op = op, .root = root, .operands = tensors, .results = tensors}, opts);
  request.reads = !mine;
  request.writes = mine;
  return direct.run(request, [=, size = direct.size()](c10d::Backend& gloo, const Tensors& sources,
                                                       const Tensors& targets, End& end) {
    if (size == 2) {
      if (!mine) {
        return Works{bring_by_gloo(gloo, sources[0], at::Tensor(), root)};
      }
      at::Tensor received = at::empty_like(targets[0]);
      Tensors rows{targets[0]};
      rows.insert(root == 0 ? rows.end() : rows.begin(), received);
      end = [rows, reduction, target = targets[0]] { fold(rows, reduction, target); };
      return Works{bring_by_gloo(gloo, at::Tensor(), received, root)};
    }
    c10d::ReduceOptions summing;
    summing.reduceOp = reduction == ReduceKind::AVG ? ReduceKind::SUM : reduction;
    summing.rootRank = root;
    if (mine && reduction == ReduceKind::AVG) {
      end = [size, target = targets[0]] { target.div_(size); };
    }
    Tensors views{mine ? targets[0] : sources[0].clone()};  // gloo writes to what it is given
    return Works{gloo.reduce(views, summing)};
  });
}

WorkPtr broadcast(Direct& direct, const Tensors& tensors, const c10d::BroadcastOptions& opts) {
  auto root = static_cast<int>(opts.rootRank);
  if (tensors.size() != 1 || root < 0 || root >= direct.size()) {
    return nullptr;  // the ordinary way says what is wrong
  }
  bool mine = root == direct.rank();
  Request request = as_asked({.kind = "broadcast", .root = root, .operands = tensors, .results = tensors}, opts);
  request.reads = mine;
  request.writes = !mine;
  return direct.run(request,
                    [mine, root](c10d::Backend& gloo, const Tensors& sources, const Tensors& targets, End&) {
                      return Works{broadcast_by_gloo(gloo, mine ? sources[0] : targets[0], root)};
                    });
}

WorkPtr all_gather(Direct& direct, const at::Tensor& output, const at::Tensor& input,
                   const c10d::AllgatherOptions& opts) {
  if (!is_multiple(output, input, direct.size())) {
    return nullptr;
  }
  bool in_place = is_piece(input, output, direct.rank());
  Request request = as_asked({.kind = "all_gather", .operands = input, .results = output}, opts);
  request.reads = !in_place;
  request.in_place = in_place;
  return direct.run(request, [rank = direct.rank(), size = direct.size()](
                                 c10d::Backend& gloo, const Tensors& sources, const Tensors& targets, End&) {
    at::Tensor source = sources.empty() ? at::Tensor() : sources[0];
    return gather_by_gloo(gloo, source, targets[0].view({size, -1}).unbind(), rank);
  });
}

WorkPtr all_gather(Direct& direct, const Tensors& outputs, const Tensors& inputs, const c10d::AllgatherOptions& opts) {
  return outputs.size() == 1 && inputs.size() == 1 ? all_gather(direct, outputs[0], inputs[0], opts) : nullptr;
}

WorkPtr all_gather(Direct& direct, const TensorLists& outputs, const Tensors& inputs,
                   const c10d::AllgatherOptions& opts) {
  if (inputs.size() != 1 || !is_even(outputs, inputs[0], direct.size())) {
    return nullptr;
  }
  Request request = as_asked({.kind = "all_gather_list", .operands = inputs, .results = outputs[0]}, opts);
  request.stacked = true;
  return direct.run(request, [rank = direct.rank()](c10d::Backend& gloo, const Tensors& sources,
                                                    const Tensors& targets, End&) {
    return gather_by_gloo(gloo, sources[0], targets, rank);
  });
}

WorkPtr gather(Direct& direct, const TensorLists& outputs, const Tensors& inputs, const c10d::GatherOptions& opts) {
  auto root = static_cast<int>(opts.rootRank);
  bool mine = root == direct.rank();
  if (inputs.size() != 1 || root < 0 || root >= direct.size() ||
      (mine && !is_even(outputs, inputs[0], direct.size()))) {
    return nullptr;
  }
  Request request = as_asked({.kind = "gather", .root = root, .operands = inputs}, opts);
  request.results = mine ? at::TensorList(outputs[0]) : at::TensorList();
  return direct.run(request, [root, size = direct.size()](c10d::Backend& gloo, const Tensors& sources,
                                                          const Tensors& targets, End& end) {
    if (size == 2) {  // gloo's own receives both rows elsewhere, and copies them
      if (targets.empty()) {
        return Works{bring_by_gloo(gloo, sources[0], at::Tensor(), root)};
      }
      end = [own = sources[0], target = targets[root]] { at::Tensor(target).copy_(own); };
      return Works{bring_by_gloo(gloo, at::Tensor(), targets[1 - root], root)};
    }
    c10d::GatherOptions rooted;
    rooted.rootRank = root;
    TensorLists rows = targets.empty() ? TensorLists() : TensorLists{as_bytes(targets)};
    Tensors row = as_bytes(sources);
    return Works{gloo.gather(rows, row, rooted)};
  });
}

WorkPtr scatter(Direct& direct, const Tensors& outputs, const TensorLists& inputs, const c10d::ScatterOptions& opts) {
  auto root = static_cast<int>(opts.rootRank);
  bool mine = root == direct.rank();
  if (outputs.size() != 1 || root < 0 || root >= direct.size() ||
      (mine && !is_even(inputs, outputs[0], direct.size()))) {
    return nullptr;
  }
  Request request = as_asked({.kind = "scatter", .root = root, .results = outputs}, opts);
  request.operands = mine ? at::TensorList(inputs[0]) : at::TensorList();
  return direct.run(request, [root](c10d::Backend& gloo, const Tensors& sources, const Tensors& targets, End&) {
    c10d::ScatterOptions rooted;
    rooted.rootRank = root;
    TensorLists rows = sources.empty() ? TensorLists() : TensorLists{as_bytes(sources)};
    Tensors row = as_bytes(targets);
    return Works{gloo.scatter(row, rows, rooted)};
  });
}

namespace {

// Of one operand, or of one for each rank.
WorkPtr reduce_scatter(Direct& direct, const Request& of, const c10d::ReduceScatterOptions& opts) {
  Request request = as_asked(of, opts);
  request.op = name_of(opts.reduceOp, request.operands[0]);
  if (request.op == nullptr || !is_folded(request.operands[0].scalar_type())) {
    return nullptr;
  }
  return direct.run(request, [reduction = opts.reduceOp.op_, rank = direct.rank(), size = direct.size()](
                                 c10d::Backend& gloo, const Tensors& sources, const Tensors& targets, End& end) {
    if (sources.size() > 1) {
      at::Tensor received = at::empty({(size - 1) * targets[0].numel()}, targets[0].options());
      Tensors rows = received.view({size - 1, -1}).unbind();
      rows.insert(rows.begin() + rank, sources[rank]);
      end = [rows = std::move(rows), target = targets[0], reduction] { fold(rows, reduction, target); };
      std::vector<int64_t> even(size, static_cast<int64_t>(targets[0].nbytes()));
      return Works{exchange_lists_by_gloo(gloo, sources, received, even, rank)};
    }
    at::Tensor pieces = at::empty_like(sources[0]);
    end = [pieces, target = targets[0], reduction, size] {
      fold(pieces.view({size, -1}).unbind(), reduction, target);
    };
    return Works{exchange_by_gloo(gloo, sources[0], pieces)};
  });
}

}  // namespace

WorkPtr reduce_scatter(Direct& direct, const at::Tensor& output, const at::Tensor& input,
                       const c10d::ReduceScatterOptions& opts) {
  if (!is_multiple(input, output, direct.size())) {
    return nullptr;
  }
  return reduce_scatter(direct, {.kind = "reduce_scatter", .operands = input, .results = output}, opts);
}

WorkPtr reduce_scatter(Direct& direct, const Tensors& outputs, const Tensors& inputs,
                       const c10d::ReduceScatterOptions& opts) {
  return outputs.size() == 1 && inputs.size() == 1 ? reduce_scatter(direct, outputs[0], inputs[0], opts) : nullptr;
}

WorkPtr reduce_scatter(Direct& direct, const Tensors& outputs, const TensorLists& inputs,
                       const c10d::ReduceScatterOptions& opts) {
  if (outputs.size() != 1 || !is_even(inputs, outputs[0], direct.size())) {
    return nullptr;
  }
  return reduce_scatter(direct, {.kind = "reduce_scatter_list", .operands = inputs[0], .results = outputs}, opts);
}

WorkPtr all_to_all(Direct& direct, const at::Tensor& output, const at::Tensor& input,
                   const c10d::AllToAllOptions& opts) {
  bool even = input.dim() > 0 && output.dim() > 0 && input.size(0) % direct.size() == 0 &&
              output.size(0) % direct.size() == 0 && is_multiple(input, output, 1);
  if (!even) {
    return nullptr;
  }
  Request request = as_asked({.kind = "all_to_all", .operands = input, .results = output}, opts);
  return direct.run(request, [](c10d::Backend& gloo, const Tensors& sources, const Tensors& targets, End&) {
    return Works{exchange_by_gloo(gloo, sources[0], targets[0])};
  });
}

namespace {

int64_t total(const std::vector<int64_t>& sizes) { return std::accumulate(sizes.begin(), sizes.end(), int64_t{0}); }

// Bytes of the pieces along dim 0; none if the rows do not fit.
std::vector<int64_t> bytes_of_pieces(const at::Tensor& tensor, std::vector<int64_t> rows, int size) {
  int64_t length = tensor.dim() > 0 ? tensor.size(0) : 0;
  if (rows.empty() && length % size == 0) {
    rows.assign(size, length / size);
  }
  bool fits = rows.size() == static_cast<size_t>(size) && total(rows) == length;
  if (length == 0 || !fits || *std::min_element(rows.begin(), rows.end()) < 0) {
    return {};
  }
  int64_t bytes_of_row = static_cast<int64_t>(tensor.nbytes()) / length;
  for (int64_t& each : rows) {
    each *= bytes_of_row;
  }
  return rows;
}

std::vector<int64_t> bytes_of(const Tensors& tensors) {
  std::vector<int64_t> bytes;
  for (const at::Tensor& tensor : tensors) {
    bytes.push_back(static_cast<int64_t>(tensor.nbytes()));
  }
  return bytes;
}

// Source i goes to rank i, and target i comes from there. The target of one other rank is written to
// as it is.
WorkPtr exchange_lists(c10d::Backend& gloo, const Tensors& sources, const Tensors& targets, int rank, End& end) {
  std::vector<int64_t> received = bytes_of(targets);
  Tensors others = as_bytes(targets);
  others.erase(others.begin() + rank);
  std::vector<int64_t> of_others = bytes_of(others);
  bool one = others.size() == 1;
  at::Tensor output = one ? others[0] : at::empty({total(of_others)}, as_bytes(sources[0]).options());
  end = [=, own = sources[rank], target = targets[rank]] {
    target.copy_(own);
    Tensors pieces = one ? Tensors() : output.split_with_sizes(of_others);
    for (size_t i = 0; i < pieces.size(); ++i) {
      others[i].copy_(pieces[i]);
    }
  };
  return exchange_lists_by_gloo(gloo, sources, output, received, rank);
}

// Pieces of these bytes, out of and into tensors that they fill one after another.
WorkPtr all_to_all(Direct& direct, const Request& of, std::vector<int64_t> received, std::vector<int64_t> sent,
                   const c10d::AllToAllOptions& opts) {
  if (sent[direct.rank()] != received[direct.rank()]) {
    return nullptr;
  }
  Request request = as_asked(of, opts);
  request.kind = "all_to_all of pieces";
  request.pieces = text_of_pieces(sent, received);
  return direct.run(request, [received = std::move(received), sent = std::move(sent), rank = direct.rank()](
                                 c10d::Backend& gloo, const Tensors& sources, const Tensors& targets, End& end) {
    if (sources.size() > 1) {
      return Works{exchange_lists(gloo, sources, targets, rank, end)};
    }
    std::vector<int64_t> output_bytes = received;  // gloo moves from both
    std::vector<int64_t> input_bytes = sent;
    at::Tensor output = as_bytes(targets[0]);
    at::Tensor input = as_bytes(sources[0]);
    return Works{gloo.alltoall_base(output, input, output_bytes, input_bytes)};
  });
}

}  // namespace

WorkPtr all_to_all(Direct& direct, const at::Tensor& output, const at::Tensor& input,
                   const std::vector<int64_t>& output_rows, const std::vector<int64_t>& input_rows,
                   const c10d::AllToAllOptions& opts) {
  std::vector<int64_t> received = bytes_of_pieces(output, output_rows, direct.size());
  std::vector<int64_t> sent = bytes_of_pieces(input, input_rows, direct.size());
  if (received.empty() || sent.empty() || input.scalar_type() != output.scalar_type()) {
    return nullptr;
  }
  return all_to_all(direct, {.operands = input, .results = output}, std::move(received), std::move(sent), opts);
}

WorkPtr all_to_all(Direct& direct, const Tensors& outputs, const Tensors& inputs, const c10d::AllToAllOptions& opts) {
  auto size = static_cast<size_t>(direct.size());
  auto fits = [&](const at::Tensor& each) { return each.scalar_type() == outputs[0].scalar_type(); };
  bool good = outputs.size() == size && inputs.size() == size && std::all_of(outputs.begin(), outputs.end(), fits) &&
              std::all_of(inputs.begin(), inputs.end(), fits);
  return good ? all_to_all(direct, {.operands = inputs, .results = outputs}, bytes_of(outputs), bytes_of(inputs), opts)
              : nullptr;
}

WorkPtr barrier(Direct& direct, const c10d::BarrierOptions& opts) {
  Request request = as_asked({.kind = "barrier"}, opts);
  return direct.run(request, [timeout = opts.timeout](c10d::Backend& gloo, const Tensors&, const Tensors&, End&) {
    c10d::BarrierOptions patient;  // the watch must be the first to see that the time is up
    patient.timeout = timeout.count() > 0 ? timeout + kPatienceOfGloo : timeout;
    return Works{gloo.barrier(patient)};
  });
}

}  // namespace torchtpu::distributed
