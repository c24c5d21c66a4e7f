// SPDX-License-Identifier: Apache-2.0
// What collectives of the short way return.
#pragma once

#include "direct.h"

#include <torch/csrc/jit/python/pybind_utils.h>

namespace torchtpu::distributed {

// The work of a collective that is over.
class FinishedWork : public c10d::Work {
 public:
  FinishedWork(std::shared_ptr<const Direct> direct, Results results)
      : direct_(std::move(direct)), results_(std::move(results)) {}

  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  Tensors result() override { return results_.tensors; }
  void synchronize() override { direct_->check(); }
  void blockCurrentStream() override { direct_->check(); }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    direct_->check();
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return finished_future(results_.of_future());
  }

 private:
  std::shared_ptr<const Direct> direct_;
  Results results_;
};

// The work of one that may be under way.
class LaterWork : public c10d::Work {
 public:
  LaterWork(std::shared_ptr<Direct> direct, OperationPtr operation)
      : direct_(std::move(direct)), operation_(std::move(operation)) {}

  bool isCompleted() override {
    if (!operation_->has_begun()) {
      direct_->lane()->serve(Lane::Patience::kNone, operation_.get());
    }
    return operation_->is_over();
  }
  bool isSuccess() const override { return operation_->is_done(); }
  std::vector<at::Tensor> result() override { return operation_->results(); }
  void synchronize() override { wait(kNoTimeout); }
  void blockCurrentStream() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override {
    if (!operation_->is_over()) {
      direct_->wait(*operation_, timeout);
    }
    operation_->rethrow();
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = operation_->future();
    if (!operation_->has_begun()) {
      direct_->lane()->hurry();
    }
    return future;
  }

  // Completes a future of Python's when it is over.
  void complete(torch::jit::PythonFutureWrapper& future) {
    getFuture()->addCallback([fut = future.fut](c10::ivalue::Future& done) {
      if (done.hasError()) {
        fut->setErrorIfNeeded(done.exception_ptr());
      } else {
        fut->markCompleted(done.value());
      }
    });
  }
  // Waits until it is over and that future is complete; without the GIL.
  void wait_for_future(torch::jit::PythonFutureWrapper& future) {
    if (!operation_->is_over()) {
      direct_->wait(*operation_, kNoTimeout);
    }
    future.fut->wait();
  }

 private:
  std::shared_ptr<Direct> direct_;
  OperationPtr operation_;
};

}  // namespace torchtpu::distributed
