// SPDX-License-Identifier: Apache-2.0
// Keeps Dynamo out of the process group. While a compiled module runs, Dynamo looks at every
// Python frame of its thread, also at those that C++ enters, such as a collective of DDP's
// reducer: it would trace the process group's own code. Lives with the GIL held.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchtpu::distributed {

namespace py = pybind11;

class Untraced {
 public:
  Untraced() : before_(set_eval_frame()(py::none())) {}
  Untraced(const Untraced&) = delete;
  Untraced& operator=(const Untraced&) = delete;
  ~Untraced() {
    py::error_scope error;  // what is being raised, if anything, is not touched
    set_eval_frame()(before_);
  }

 private:
  static py::handle set_eval_frame() {
    // never released: it lives as long as torch
    static PyObject* function = py::module_::import("torch._C._dynamo.eval_frame")
                                    .attr("set_eval_frame")
                                    .cast<py::object>()
                                    .release()
                                    .ptr();
    return function;
  }

  py::object before_;
};

}  // namespace torchtpu::distributed
