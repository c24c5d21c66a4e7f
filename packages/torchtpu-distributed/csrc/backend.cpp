// SPDX-License-Identifier: Apache-2.0
#include "backend.h"

#include "direct_works.h"
#include "host_memory.h"
#include "profiled.h"
#include "ranges.h"
#include "untraced.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/jit/python/pybind_utils.h>

namespace torchtpu::distributed {
namespace {

bool on_host(const at::Tensor& tensor) { return tensor.device().is_cpu(); }
bool on_host(const Tensors& tensors) { return !tensors.empty() && on_host(tensors[0]); }

std::vector<int64_t> sizes_of(const Tensors& tensors) {
  std::vector<int64_t> sizes;
  for (const at::Tensor& tensor : tensors) {
    sizes.push_back(tensor.numel());
  }
  return sizes;
}

// None of a timeout that is not given.
py::object seconds(std::chrono::milliseconds timeout) {
  return timeout.count() > 0 ? py::object(py::float_(static_cast<double>(timeout.count()) / 1e3)) : py::none();
}

}  // namespace

PythonBackend::PythonBackend(std::string name, int rank, int size, std::chrono::milliseconds timeout,
                             py::object target, c10::intrusive_ptr<Backend> host, std::shared_ptr<Direct> direct)
    : Backend(rank, size),
      name_(std::move(name)),
      target_(std::move(target)),
      host_(std::move(host)),
      options_(c10::make_intrusive<BackendOptions>(name_, timeout)),
      direct_(std::move(direct)) {}

PythonBackend::~PythonBackend() {
  if (direct_->is_aborted()) {
    host_.release();  // as in Lane
  }
  if (Py_IsInitialized() == 0) {
    target_.release();  // the interpreter is gone, and the object with it
    return;
  }
  py::gil_scoped_acquire gil;
  target_ = py::object();
}

template <typename... Arguments>
WorkPtr PythonBackend::call(const char* method, Arguments&&... arguments) {
  py::gil_scoped_acquire gil;
  Untraced untraced;
  return to_work(target_.attr(method)(std::forward<Arguments>(arguments)...));
}

template <typename Short, typename... Arguments>
WorkPtr PythonBackend::shortly(Short&& way, const char* method, Arguments&&... arguments) {
  if (!in_series_.load()) {
    if (WorkPtr work = way(*direct_)) {
      return work;
    }
  }
  return call(method, std::forward<Arguments>(arguments)...);
}

template <typename Begin>
WorkPtr PythonBackend::on_gloo(const HostCall& call, std::chrono::milliseconds timeout, Begin&& begin) {
  PendingPtr record = host_record(call, timeout);
  WorkPtr of_gloo;
  try {
    of_gloo = begin();
  } catch (const std::exception&) {  // an argument's mistake: gloo has not counted it
    py::gil_scoped_acquire gil;
    Untraced untraced;
    target_.attr("host_withdrawn")(record);
    throw;
  }
  py::gil_scoped_acquire gil;
  return in_series(c10::make_intrusive<GlooWork>(of_gloo, direct_, target_, std::move(record)));
}

PendingPtr PythonBackend::host_record(const HostCall& call, std::chrono::milliseconds timeout) {
  py::gil_scoped_acquire gil;
  Untraced untraced;
  py::object op = call.op != nullptr ? py::cast(*call.op) : py::object(py::none());
  return target_.attr("host_record")(call.kind, op, call.root, call.tensors, call.sent, call.received, seconds(timeout))
      .cast<PendingPtr>();
}

WorkPtr PythonBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  Profiled range(profiled::kBroadcast, *this, direct_->group(), [&] { return Operands{tensors, tensors}; });
  if (on_host(tensors)) {
    return on_gloo({.kind = "broadcast", .tensors = tensors, .root = opts.rootRank}, opts.timeout,
                   [&] { return host_->broadcast(tensors, opts); });
  }
  return shortly([&](Direct& direct) { return distributed::broadcast(direct, tensors, opts); },
                 "broadcast", tensors, opts);
}

WorkPtr PythonBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  Profiled range(profiled::kAllReduce, *this, direct_->group(), [&] { return Operands{tensors, tensors}; });
  if (on_host(tensors)) {
    return on_gloo({.kind = "all_reduce", .tensors = tensors, .op = &opts.reduceOp}, opts.timeout,
                   [&] { return host_->allreduce(tensors, opts); });
  }
  return shortly([&](Direct& direct) { return all_reduce(direct, tensors, opts); },
                 "allreduce", tensors, opts);
}

WorkPtr PythonBackend::allreduce_coalesced(Tensors& tensors,
                                           const c10d::AllreduceCoalescedOptions& opts) {
  Profiled range(profiled::kAllReduceMany, *this, direct_->group(),
                 [&] { return Operands{tensors, tensors}; });
  if (on_host(tensors)) {
    return on_gloo({.kind = "all_reduce", .tensors = tensors, .op = &opts.reduceOp}, opts.timeout,
                   [&] { return host_->allreduce_coalesced(tensors, opts); });
  }
  return shortly([&](Direct& direct) { return all_reduce(direct, tensors, opts); },
                 "allreduce_coalesced", tensors, opts);
}

WorkPtr PythonBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  Profiled range(profiled::kReduce, *this, direct_->group(), [&] { return Operands{tensors, tensors}; });
  if (on_host(tensors)) {
    return on_gloo({.kind = "reduce", .tensors = tensors, .op = &opts.reduceOp,
                    .root = opts.rootRank}, opts.timeout,
                   [&] { return host_->reduce(tensors, opts); });
  }
  return shortly([&](Direct& direct) { return distributed::reduce(direct, tensors, opts); },
                 "reduce", tensors, opts);
}

WorkPtr PythonBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                 const c10d::AllgatherOptions& opts) {
  Profiled range(profiled::kAllGather, *this, direct_->group(),
                 [&] { return Operands{inputs, joined(outputs)}; });
  if (on_host(inputs)) {
    return on_gloo({.kind = "all_gather", .tensors = inputs}, opts.timeout,
                   [&] { return host_->allgather(outputs, inputs, opts); });
  }
  return shortly([&](Direct& direct) { return all_gather(direct, outputs, inputs, opts); },
                 "allgather", outputs, inputs, opts);
}

WorkPtr PythonBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                       const c10d::AllgatherOptions& opts) {
  Profiled range(profiled::kAllGatherBase, *this, direct_->group(),
                 [&] { return Operands{{input}, {output}}; });
  if (on_host(output)) {
    return on_gloo({.kind = "all_gather", .tensors = {input}}, opts.timeout,
                   [&] { return host_->_allgather_base(output, input, opts); });
  }
  return shortly([&](Direct& direct) { return all_gather(direct, output, input, opts); },
                 "allgather_base", output, input, opts);
}

WorkPtr PythonBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                           const c10d::AllgatherOptions& opts) {
  Profiled range(profiled::kAllGather, *this, direct_->group(),
                 [&] { return Operands{inputs, joined(outputs)}; });
  if (on_host(inputs)) {
    return on_gloo({.kind = "all_gather", .tensors = inputs}, opts.timeout,
                   [&] { return host_->allgather_coalesced(outputs, inputs, opts); });
  }
  return call("allgather_coalesced", outputs, inputs, opts);
}

WorkPtr PythonBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                       const c10d::AllgatherOptions& opts) {
  Profiled range(profiled::kAllGatherMany, *this, direct_->group(),
                 [&] { return Operands{inputs, outputs}; });
  if (on_host(outputs)) {
    return on_gloo({.kind = "all_gather", .tensors = inputs}, opts.timeout,
                   [&] { return host_->allgather_into_tensor_coalesced(outputs, inputs, opts); });
  }
  return shortly([&](Direct& direct) { return all_gather(direct, outputs, inputs, opts); },
                 "allgather_into_tensor_coalesced", outputs, inputs, opts);
}

WorkPtr PythonBackend::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  Profiled range(profiled::kGather, *this, direct_->group(),
                 [&] { return Operands{inputs, joined(outputs)}; });
  if (on_host(inputs)) {
    return on_gloo({.kind = "gather", .tensors = inputs, .root = opts.rootRank}, opts.timeout,
                   [&] { return host_->gather(outputs, inputs, opts); });
  }
  return shortly([&](Direct& direct) { return distributed::gather(direct, outputs, inputs, opts); },
                 "gather", outputs, inputs, opts);
}

WorkPtr PythonBackend::scatter(Tensors& outputs, TensorLists& inputs,
                               const c10d::ScatterOptions& opts) {
  Profiled range(profiled::kScatter, *this, direct_->group(),
                 [&] { return Operands{joined(inputs), outputs}; });
  if (on_host(outputs)) {
    return on_gloo({.kind = "scatter", .tensors = outputs, .root = opts.rootRank}, opts.timeout,
                   [&] { return host_->scatter(outputs, inputs, opts); });
  }
  return shortly([&](Direct& direct) { return distributed::scatter(direct, outputs, inputs, opts); },
                 "scatter", outputs, inputs, opts);
}

WorkPtr PythonBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                      const c10d::ReduceScatterOptions& opts) {
  Profiled range(profiled::kReduceScatter, *this, direct_->group(),
                 [&] { return Operands{joined(inputs), outputs}; });
  if (on_host(outputs)) {
    return on_gloo({.kind = "reduce_scatter", .tensors = outputs, .op = &opts.reduceOp}, opts.timeout,
                   [&] { return host_->reduce_scatter(outputs, inputs, opts); });
  }
  return shortly([&](Direct& direct) { return distributed::reduce_scatter(direct, outputs, inputs, opts); },
                 "reduce_scatter", outputs, inputs, opts);
}

WorkPtr PythonBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                            const c10d::ReduceScatterOptions& opts) {
  Profiled range(profiled::kReduceScatterBase, *this, direct_->group(),
                 [&] { return Operands{{input}, {output}}; });
  if (on_host(output)) {
    return on_gloo({.kind = "reduce_scatter", .tensors = {output}, .op = &opts.reduceOp}, opts.timeout,
                   [&] { return host_->_reduce_scatter_base(output, input, opts); });
  }
  return shortly([&](Direct& direct) { return distributed::reduce_scatter(direct, output, input, opts); },
                 "reduce_scatter_base", output, input, opts);
}

WorkPtr PythonBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                       const c10d::ReduceScatterOptions& opts) {
  Profiled range(profiled::kReduceScatterMany, *this, direct_->group(),
                 [&] { return Operands{inputs, outputs}; });
  if (on_host(outputs)) {
    return on_gloo({.kind = "reduce_scatter", .tensors = outputs, .op = &opts.reduceOp}, opts.timeout,
                   [&] { return host_->reduce_scatter_tensor_coalesced(outputs, inputs, opts); });
  }
  return shortly([&](Direct& direct) { return distributed::reduce_scatter(direct, outputs, inputs, opts); },
                 "reduce_scatter_tensor_coalesced", outputs, inputs, opts);
}

WorkPtr PythonBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                     std::vector<int64_t>& output_splits,
                                     std::vector<int64_t>& input_splits,
                                     const c10d::AllToAllOptions& opts) {
  Profiled range(profiled::kAllToAllBase, *this, direct_->group(),
                 [&] { return Operands{{input}, {output}, input_splits, output_splits}; });
  if (on_host(output)) {
    return on_gloo({.kind = "all_to_all", .tensors = {input},
                    .sent = pieces(input, input_splits),
                    .received = pieces(output, output_splits)}, opts.timeout,
                   [&] { return host_->alltoall_base(output, input, output_splits, input_splits, opts); });
  }
  auto way = [&](Direct& direct) {
    bool even = output_splits.empty() && input_splits.empty();
    return even ? all_to_all(direct, output, input, opts)
                : all_to_all(direct, output, input, output_splits, input_splits, opts);
  };
  return shortly(way, "alltoall_base", output, input, output_splits, input_splits, opts);
}

std::vector<int64_t> PythonBackend::pieces(const at::Tensor& tensor, std::vector<int64_t> rows) const {
  int64_t of_row = tensor.dim() > 0 && tensor.size(0) > 0 ? tensor.numel() / tensor.size(0) : tensor.numel();
  if (rows.empty()) {
    return std::vector<int64_t>(size_, tensor.numel() / size_);
  }
  for (int64_t& each : rows) {
    each *= of_row;
  }
  return rows;
}

WorkPtr PythonBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  Profiled range(profiled::kAllToAll, *this, direct_->group(), [&] { return Operands{inputs, outputs}; });
  if (on_host(outputs)) {
    return on_gloo({.kind = "all_to_all", .tensors = inputs,
                    .sent = sizes_of(inputs),
                    .received = sizes_of(outputs)}, opts.timeout,
                   [&] { return host_->alltoall(outputs, inputs, opts); });
  }
  return shortly([&](Direct& direct) { return all_to_all(direct, outputs, inputs, opts); },
                 "alltoall", outputs, inputs, opts);
}

template <typename Begin>
WorkPtr PythonBackend::message(Begin&& begin) {
  try {
    return in_series(begin());
  } catch (const std::exception&) {
    std::lock_guard<std::mutex> lock(series_mutex_);
    if (!in_series_) {
      throw;
    }
    if (!series_error_) {
      series_error_ = std::current_exception();
    }
    return c10::make_intrusive<FinishedWork>(direct_, Results());
  }
}

WorkPtr PythonBackend::send(Tensors& tensors, int destination, int tag) {
  Profiled range(profiled::kSend, *this, direct_->group(), [&] { return Operands{tensors, {}}; });
  return message([&] { return distributed::send(direct_, *host_, tensors.at(0), destination, tag); });
}

WorkPtr PythonBackend::recv(Tensors& tensors, int source, int tag) {
  Profiled range(profiled::kReceive, *this, direct_->group(), [&] { return Operands{{}, tensors}; });
  return message([&] { return receive(direct_, *host_, tensors.at(0), source, tag); });
}

WorkPtr PythonBackend::recvAnysource(Tensors& tensors, int tag) {
  Profiled range(profiled::kReceive, *this, direct_->group(), [&] { return Operands{{}, tensors}; });
  return message([&] { return receive(direct_, *host_, tensors.at(0), -1, tag); });
}

WorkPtr PythonBackend::barrier(const c10d::BarrierOptions& opts) {
  Profiled range(profiled::kBarrier, *this, direct_->group(), [&] { return Operands{{}, {}}; });
  return shortly([&](Direct& direct) { return distributed::barrier(direct, opts); }, "barrier", opts);
}

WorkPtr PythonBackend::in_series(WorkPtr work) {
  std::lock_guard<std::mutex> lock(series_mutex_);
  if (in_series_) {
    series_.push_back(work);
  }
  return work;
}

void PythonBackend::startCoalescing() {
  {
    std::lock_guard<std::mutex> lock(series_mutex_);
    in_series_ = true;
    series_.clear();
    series_error_ = nullptr;
  }
  py::gil_scoped_acquire gil;
  Untraced untraced;
  target_.attr("start_coalescing")();
}

WorkPtr PythonBackend::endCoalescing() {
  std::vector<WorkPtr> series;
  std::exception_ptr error;
  {
    std::lock_guard<std::mutex> lock(series_mutex_);
    in_series_ = false;
    series.swap(series_);
    error = std::exchange(series_error_, nullptr);
  }
  WorkPtr work = call("end_coalescing", series);
  if (error) {
    std::rethrow_exception(error);
  }
  return work;
}

uint64_t PythonBackend::getSequenceNumberForGroup() {
  py::gil_scoped_acquire gil;
  Untraced untraced;
  return target_.attr("sequence_number")().cast<uint64_t>();
}

c10::intrusive_ptr<c10d::Backend> PythonBackend::split(const c10::intrusive_ptr<c10d::Store>& /*store*/,
                                                       const std::vector<int>& ranks,
                                                       const c10::intrusive_ptr<Options>& opts) {
  py::gil_scoped_acquire gil;
  Untraced untraced;
  py::object seconds = py::none();
  if (opts) {
    seconds = py::float_(static_cast<double>(opts->timeout.count()) / 1e3);
  }
  return target_.attr("split")(ranks, opts ? opts->group_name : std::string(), seconds)
      .cast<c10::intrusive_ptr<Backend>>();
}

void PythonBackend::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  py::gil_scoped_acquire gil;
  Untraced untraced;
  target_.attr("set_timeout")(static_cast<double>(timeout.count()) / 1e3);
}

void PythonBackend::shutdown() {
  py::gil_scoped_acquire gil;
  Untraced untraced;
  target_.attr("shutdown")();
}

void PythonBackend::abort() {
  py::gil_scoped_acquire gil;
  Untraced untraced;
  target_.attr("abort")();
}

WorkPtr PythonBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  at::NoGradGuard no_grad;
  Tensors on_host;
  for (const at::Tensor& tensor : tensors) {
    on_host.push_back(tensor.cpu());
  }
  WorkPtr work = on_gloo({.kind = "all_reduce of sparse tensors",
                          .tensors = {at::empty({0}, at::TensorOptions().dtype(on_host.at(0).scalar_type()))}}, opts.timeout,
                         [&] { return host_->allreduce_sparse(on_host, opts); });
  if (!on_host.at(0).is_same(tensors.at(0))) {
    work->wait();
    for (size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].copy_(on_host[i].to(tensors[i].device()));
    }
  }
  return work;
}

}  // namespace torchtpu::distributed
