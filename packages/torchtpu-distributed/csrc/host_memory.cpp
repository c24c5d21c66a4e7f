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

py::object compare_here(Mailbox& box, uint64_t number, const Call& call, const std::string& line,
                        const Abort& abort, bool patient) {
  Agreement agreement;
  std::string others;
  {
    py::gil_scoped_release no_gil;
    agreement = compare(box, number, call, line, abort, patient, patient, others);
    if (agreement == Agreement::kNotYet) {
      box.taken(number);
    }
  }
  return agreement == Agreement::kDiffers ? py::object(readable(others)) : py::object(py::none());
}

py::object said_by(Mailbox& box, int rank, uint64_t number) {
  std::optional<std::string> said = box.said(rank, number);
  return said ? py::object(readable(*said)) : py::object(py::none());
}

}  // namespace

void bind_host_memory(py::module_& m) {
  py::class_<Abort, std::shared_ptr<Abort>>(m, "Abort", "Ends the waits it was given to, once set.")
      .def(py::init<>())
      .def("set", [](Abort& self) { self.set.store(true); }, "End them.");
  py::class_<Mailbox, std::shared_ptr<Mailbox>>(m, "Mailbox", "What a group's ranks call, in memory they share.")
      .def(py::init<const std::string&, int, int, uint64_t, uint64_t>(), py::arg("path"), py::arg("rank"),
           py::arg("size"), py::arg("entries") = Mailbox::kEntries, py::arg("letters") = 0)
      .def("compare", &compare_here, py::arg("number"), py::arg("call"), py::arg("line"), py::arg("abort"),
           py::arg("patient") = true,
           "Say what this rank calls; the number in the group of one that is known to call something else, "
           "and what it says, or None. Without patience nothing is said while the ring is full.")
      .def_readonly_static("ENTRIES", &Mailbox::kEntries)
      .def("take_back", &Mailbox::take_back, py::arg("number"), "Take back what this rank has said last.")
      .def("said", &said_by, py::arg("rank"), py::arg("number"),
           "What a rank has said it calls, or None if that is not there, or not any more.");
  m.def("view_of", &tensor_over, py::arg("address"), py::arg("elements"), py::arg("dtype"),
        py::arg("owner"), "A CPU tensor over memory that `owner` keeps.");
  m.def("wait_for", &wait_for, py::arg("works"), py::arg("abort"),
        py::call_guard<py::gil_scoped_release>(), "Wait for works of gloo and raise what went wrong; False if aborted.");
}

}  // namespace torchtpu::distributed
