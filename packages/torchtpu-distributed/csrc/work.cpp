// SPDX-License-Identifier: Apache-2.0
#include "work.h"

#include "direct.h"
#include "untraced.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>

namespace torchtpu::distributed {

PythonWork::~PythonWork() {
  if (Py_IsInitialized() == 0) {
    work_.release();  // the interpreter is gone, and the object with it
    return;
  }
  py::gil_scoped_acquire gil;
  work_ = py::object();
}

bool PythonWork::isCompleted() {
  py::gil_scoped_acquire gil;
  Untraced untraced;
  return work_.attr("is_completed")().cast<bool>();
}

bool PythonWork::isSuccess() const {
  py::gil_scoped_acquire gil;
  Untraced untraced;
  return work_.attr("is_success")().cast<bool>();
}

int PythonWork::sourceRank() const {
  py::gil_scoped_acquire gil;
  Untraced untraced;
  return work_.attr("source_rank")().cast<int>();
}

std::vector<at::Tensor> PythonWork::result() {
  py::gil_scoped_acquire gil;
  Untraced untraced;
  return work_.attr("result")().cast<std::vector<at::Tensor>>();
}

void PythonWork::synchronize() {
  py::gil_scoped_acquire gil;
  Untraced untraced;
  work_.attr("synchronize")();
}

bool PythonWork::wait(std::chrono::milliseconds timeout) {
  py::gil_scoped_acquire gil;
  Untraced untraced;
  py::object seconds = py::none();
  if (timeout != kNoTimeout) {
    seconds = py::float_(static_cast<double>(timeout.count()) / 1e3);
  }
  return work_.attr("wait")(seconds).cast<bool>();
}

c10::intrusive_ptr<c10::ivalue::Future> PythonWork::getFuture() {
  py::gil_scoped_acquire gil;
  Untraced untraced;
  py::object future = work_.attr("get_future")();
  return future.cast<std::shared_ptr<torch::jit::PythonFutureWrapper>>()->fut;
}

GlooWork::~GlooWork() {
  if (Py_IsInitialized() == 0) {
    owner_.release();  // the interpreter is gone, and the object with it
    return;
  }
  py::gil_scoped_acquire gil;
  owner_ = py::object();
}

bool GlooWork::wait(std::chrono::milliseconds timeout) {
  if (timeout != kNoTimeout) {
    return work_->wait(timeout);  // it is the caller's own, and can be repeated
  }
  if (is_over_soon()) {
    record_->launched_s.store(monotonic_s());
    record_->done_s.store(monotonic_s());
    return true;
  }
  try {
    direct_->follow(record_, [this](const Abort& abort) { return wait_for({work_}, abort); });
  } catch (...) {
    if (!work_->isCompleted()) {
      py::gil_scoped_acquire gil;
      owner_.attr("host_left")();
    }
    throw;
  }
  return true;
}

bool GlooWork::is_over_soon() {
  try {
    return work_->wait(kSignalPeriod);
  } catch (const std::exception&) {
    return false;  // or it has failed
  }
}

std::exception_ptr as_exception(const py::object& error) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  python_error raised;
  raised.persist();
  return std::make_exception_ptr(raised);
}

void fail_future(torch::jit::PythonFutureWrapper& future, const py::object& error) {
  future.fut->setErrorIfNeeded(as_exception(error));
}

void finish_future(torch::jit::PythonFutureWrapper& future, std::vector<at::Tensor> tensors) {
  py::gil_scoped_release no_gil;  // for its callbacks
  future.fut->markCompleted(c10::IValue(std::move(tensors)));
}

c10::intrusive_ptr<c10d::Work> to_work(py::object returned) {
  if (py::isinstance<c10d::Work>(returned)) {
    return returned.cast<c10::intrusive_ptr<c10d::Work>>();
  }
  return c10::make_intrusive<PythonWork>(std::move(returned));
}

}  // namespace torchtpu::distributed
