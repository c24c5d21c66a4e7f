// SPDX-License-Identifier: Apache-2.0
// Calls from C++ into torchtpu_core.runtime.bridge, the one Python module it knows.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace torchtpu {

namespace py = pybind11;

// A function of torchtpu_core.runtime.bridge, looked up once. The GIL is held.
py::object bridge(const char* name);

// Lets go of an error that the caller can do without. Ctrl-C is raised later, where the script goes on.
void drop(const py::error_already_set& error);

// Whether an error of this class may say that a call is refused. KeyboardInterrupt and what else is
// no Exception says nothing about the call. The GIL need not be held.
bool may_refuse(PyObject* error_class);

}  // namespace torchtpu
