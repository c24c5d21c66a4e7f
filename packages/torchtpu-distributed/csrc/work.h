// SPDX-License-Identifier: Apache-2.0
// A c10d::Work whose answers come from a Python object.
#pragma once

#include "pending.h"

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/utils/pybind.h>

#include <memory>

namespace torch::jit {
struct PythonFutureWrapper;
}

namespace torchtpu::distributed {

namespace py = pybind11;

class Direct;

// Holds an object with wait(timeout_s), get_future(), is_completed(), is_success(),
// source_rank(), result() and synchronize().
class PythonWork : public c10d::Work {
 public:
  explicit PythonWork(py::object work) : work_(std::move(work)) {}
  ~PythonWork() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout) override;
  void blockCurrentStream() override { synchronize(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  // The future that Python gave; the GIL is held.
  py::object python_future() const { return work_.attr("get_future")(); }

 private:
  py::object work_;
};

// A work of gloo on CPU tensors. A wait that takes long is followed as one for the device's
// collectives is, so that it ends in time and names the rank behind a failure. If it ends before
// gloo does, `host_left()` of `owner` is told.
class GlooWork : public c10d::Work {
 public:
  GlooWork(c10::intrusive_ptr<c10d::Work> work, std::shared_ptr<Direct> direct, py::object owner, PendingPtr record)
      : work_(std::move(work)), direct_(std::move(direct)), owner_(std::move(owner)), record_(std::move(record)) {}
  ~GlooWork() override;

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  int sourceRank() const override { return work_->sourceRank(); }
  std::vector<at::Tensor> result() override { return work_->result(); }
  void synchronize() override { work_->synchronize(); }
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override { work_->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return work_->getFuture(); }

 private:
  bool is_over_soon();

  c10::intrusive_ptr<c10d::Work> work_;
  std::shared_ptr<Direct> direct_;
  py::object owner_;
  PendingPtr record_;
};

// A Python exception as C++ throws it. GIL held; it may be dropped without.
std::exception_ptr as_exception(const py::object& error);

// Ends a future with a Python exception, which C++ that reads its value then throws. (What
// Python's set_exception stores is a value for C++: DDP would take it for tensors.) GIL held.
void fail_future(torch::jit::PythonFutureWrapper& future, const py::object& error);

// Ends a future with tensors, as C++ expects those of a collective. GIL held.
void finish_future(torch::jit::PythonFutureWrapper& future, std::vector<at::Tensor> tensors);

// The Work behind what a Python method returned: itself if it is one. The GIL is held.
c10::intrusive_ptr<c10d::Work> to_work(py::object returned);

}  // namespace torchtpu::distributed
