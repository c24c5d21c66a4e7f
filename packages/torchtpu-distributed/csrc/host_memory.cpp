// SPDX-License-Identifier: Apache-2.0
#include "host_memory.h"

#include "direct.h"

#include <ATen/ops/from_blob.h>

namespace torchtpu::distributed {
namespace {

namespace py = pybind11;

// A CPU tensor over memory that `owner` keeps.
at::Tensor tensor_over(uintptr_t address, int64_t elements, c10::ScalarType dtype, py::object owner) {
  PyObject* kept = owner.release().ptr();
  auto release = [kept](void*) {
    if (Py_IsInitialized() != 0) {
      py::gil_scoped_acquire gil;
      Py_DECREF(kept);
    }
  };
  return at::from_blob(reinterpret_cast<void*>(address), {elements}, release,
                       at::TensorOptions().dtype(dtype));
}

py::object read(Mailbox& box, uint64_t number, const Abort& abort) {
  {
    py::gil_scoped_release no_gil;
    if (!await(box, number, abort)) {
      return py::none();
    }
  }
  py::str text = readable(box.text(number));
  box.taken(number);
  return text;
}

bool post(Mailbox& box, uint64_t number, const std::string& text, const Abort& abort) {
  py::gil_scoped_release no_gil;
  return poll(abort, [&] { return box.post(number, text); });
}

}  // namespace

void bind_host_memory(py::module_& m) {
  py::class_<Abort, std::shared_ptr<Abort>>(m, "Abort", "Ends the waits it was given to, once set.")
      .def(py::init<>())
      .def("set", [](Abort& self) { self.set.store(true); }, "End them.");
  py::class_<Mailbox, std::shared_ptr<Mailbox>>(m, "Mailbox", "What a group's first rank calls, in memory ranks share.")
      .def(py::init<const std::string&, int, int>(), py::arg("path"), py::arg("rank"),
           py::arg("size"))
      .def("post", &post, py::arg("number"), py::arg("text"), py::arg("abort"),
           "Write an entry; False if aborted.")
      .def("read", &read, py::arg("number"), py::arg("abort"),
           "Wait for an entry; None if aborted.");
  m.def("view_of", &tensor_over, py::arg("address"), py::arg("elements"), py::arg("dtype"),
        py::arg("owner"), "A CPU tensor over memory that `owner` keeps.");
  m.def("wait_for", &wait_for, py::arg("works"), py::arg("abort"),
        py::call_guard<py::gil_scoped_release>(), "Wait for works of gloo and raise what went wrong; False if aborted.");
}

}  // namespace torchtpu::distributed
