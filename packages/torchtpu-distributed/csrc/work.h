// SPDX-License-Identifier: Apache-2.0
// A c10d::Work whose answers come from a Python object.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/utils/pybind.h>

namespace torchtpu::distributed {

namespace py = pybind11;

// Holds an object with wait(timeout_s), get_future(), is_completed(), is_success(),
// result() and synchronize().
class PythonWork : public c10d::Work {
 public:
  explicit PythonWork(py::object work) : work_(std::move(work)) {}
  ~PythonWork() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout) override;
  void blockCurrentStream() override { synchronize(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  py::object work_;
};

// The Work behind what a Python method returned: itself if it is one. The GIL is held.
c10::intrusive_ptr<c10d::Work> to_work(py::object returned);

}  // namespace torchtpu::distributed
