// SPDX-License-Identifier: Apache-2.0
#include "bridge.h"

#include <string>
#include <unordered_map>

namespace torchtpu {

py::object bridge(const char* name) {
  // Leaked: outlives the interpreter's finalisation order. Keyed by literal address.
  static auto* functions = new std::unordered_map<const void*, py::object>();
  auto it = functions->find(name);
  if (it == functions->end()) {
    py::object function = py::module_::import("torchtpu_core.runtime.bridge").attr(name);
    it = functions->emplace(name, std::move(function)).first;
  }
  return it->second;
}

void drop(const py::error_already_set& error) {
  if (error.matches(PyExc_KeyboardInterrupt)) {
    PyErr_SetInterrupt();
  }
}

bool may_refuse(PyObject* error_class) {
  py::gil_scoped_acquire gil;
  return PyErr_GivenExceptionMatches(error_class, PyExc_Exception) != 0;
}

}  // namespace torchtpu
