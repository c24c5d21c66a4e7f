// SPDX-License-Identifier: Apache-2.0
#include "backend.h"
#include "direct_works.h"
#include "host_memory.h"
#include "ranges.h"

#include <torch/csrc/jit/python/pybind_utils.h>

PYBIND11_MODULE(_C, m) {
  using torchtpu::distributed::BackendOptions;
  using torchtpu::distributed::PythonBackend;
  m.doc() = "The compiled part of torchtpu_distributed.";
  pybind11::module_::import("torch.distributed");
  m.def("fail_future", &torchtpu::distributed::fail_future, pybind11::arg("future"),
        pybind11::arg("error"));
  m.def("finish_future", &torchtpu::distributed::finish_future, pybind11::arg("future"),
        pybind11::arg("tensors"));
  pybind11::class_<BackendOptions, c10::intrusive_ptr<BackendOptions>, c10d::Backend::Options>(
      m, "BackendOptions", "Options of a group, which PyTorch copies when it splits the group.")
      .def("__deepcopy__",
           [](const BackendOptions& self, const pybind11::dict& /*seen*/) {
             return c10::make_intrusive<BackendOptions>(self);
           },
           pybind11::arg("seen"));
  pybind11::class_<PythonBackend, c10::intrusive_ptr<PythonBackend>, c10d::Backend>(
      m, "Backend", "A c10d backend that calls a Python object.")
      .def_property_readonly("options", &PythonBackend::getBackendOptions);
  m.def("make_backend",
        [](std::string name, int rank, int size, double timeout_s, pybind11::object target,
           c10::intrusive_ptr<c10d::Backend> host, std::shared_ptr<torchtpu::distributed::Direct> direct) {
          auto timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1e3));
          return c10::intrusive_ptr<c10d::Backend>(
              c10::make_intrusive<PythonBackend>(std::move(name), rank, size, timeout, std::move(target),
                                                 std::move(host), std::move(direct)));
        },
        pybind11::arg("name"), pybind11::arg("rank"), pybind11::arg("size"), pybind11::arg("timeout_s"),
        pybind11::arg("target"), pybind11::arg("host"), pybind11::arg("direct"),
        "A c10d backend that calls the methods of `target`, and `host` for CPU tensors.");
  torchtpu::distributed::bind_pending(m);
  torchtpu::distributed::bind_sigterm(m);
  torchtpu::distributed::bind_host_memory(m);
  torchtpu::distributed::bind_direct(m);
  torchtpu::distributed::bind_ranges(m);
}
