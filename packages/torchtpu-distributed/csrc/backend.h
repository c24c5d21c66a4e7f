// SPDX-License-Identifier: Apache-2.0
// A c10d::Backend that calls a Python object. PyTorch gives Python no way to derive from
// c10d::Backend, and only a Backend can serve one device of a process group beside gloo.
// CPU tensors go to a gloo backend, so that one name serves both kinds of tensors.
#pragma once

#include "direct.h"
#include "direct_calls.h"
#include "messages.h"
#include "work.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <mutex>

namespace torchtpu::distributed {

// What PyTorch hands on to the parts of a group when it splits it: it copies them first.
struct BackendOptions : c10d::Backend::Options {
  using Options::Options;
};

// What ranks must agree on of a collective of CPU tensors.
struct HostCall {
  const char* kind;
  Tensors tensors;                       // those that have one size on all ranks,
  const c10d::ReduceOp* op = nullptr;
  int64_t root = -1;
  std::vector<int64_t> sent = {};        // or elements that go to each rank,
  std::vector<int64_t> received = {};    // and that come from it
};

class PythonBackend : public c10d::Backend {
 public:
  PythonBackend(std::string name, int rank, int size, std::chrono::milliseconds timeout, py::object target,
                c10::intrusive_ptr<Backend> host, std::shared_ptr<Direct> direct);
  ~PythonBackend() override;

  // One of those under which it is registered: that of the user.
  const std::string getBackendName() const override { return name_; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  bool supportsCoalescing() const override { return true; }
  bool supportsSplitting() const override { return true; }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  // On the device the tensors have their new values when it returns.
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;

  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override;
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                    const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& opts) override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  void shutdown() override;
  void abort() override;

 private:
  template <typename... Arguments>
  WorkPtr call(const char* method, Arguments&&... arguments);

  // By the short way if there is one and it takes the call, else by `method`.
  template <typename Short, typename... Arguments>
  WorkPtr shortly(Short&& way, const char* method, Arguments&&... arguments);

  // A work that belongs to the series of collectives if one has begun.
  WorkPtr in_series(WorkPtr work);

  // A message, likewise. What goes wrong within a series is thrown at its end: PyTorch's
  // _coalescing_manager would take an error before it for a series that never ends, and leave
  // out all later collectives of the group.
  template <typename Begin>
  WorkPtr message(Begin&& begin);

  // A collective of CPU tensors, compared with the other ranks' before `begin` gives gloo's work.
  template <typename Begin>
  WorkPtr on_gloo(const HostCall& call, std::chrono::milliseconds timeout, Begin&& begin);
  PendingPtr host_record(const HostCall& call, std::chrono::milliseconds timeout);
  // Elements of the pieces that splits along dim 0 give, or of equal ones without splits.
  std::vector<int64_t> pieces(const at::Tensor& tensor, std::vector<int64_t> rows) const;

  std::string name_;
  py::object target_;
  c10::intrusive_ptr<Backend> host_;
  c10::intrusive_ptr<BackendOptions> options_;
  std::shared_ptr<Direct> direct_;
  std::mutex series_mutex_;
  std::atomic<bool> in_series_{false};
  std::vector<WorkPtr> series_;
  std::exception_ptr series_error_;
};

}  // namespace torchtpu::distributed
