// SPDX-License-Identifier: Apache-2.0
// Errors the device finds while it runs (an index out of range): a flag per check,
// read when the host next synchronises.
#pragma once

#include "bridge.h"
#include "user_line.h"

#include <c10/core/Device.h>

#include <vector>

namespace torchtpu {

// `flags` is a bool array on the device, one element per check of `program`;
// `lines` are the user lines of the trace's nodes. The GIL is held.
void defer(c10::DeviceIndex device, py::object flags, py::object program,
           std::vector<UserLine> lines);

// The error being handled, of waiting for a value, with the line of the op that makes the value if it
// says that a program failed. The GIL is held.
[[noreturn]] void rethrow_at(const py::error_already_set& error, const UserLine& line);

// Whether the program behind an array has ended well; if not, a synchronisation will tell.
// The GIL is held.
bool is_over(const py::object& array);

// Whether the programs are over whose flags have not been read. The GIL is held.
bool are_checks_over(c10::DeviceIndex device);

// Reads the flags of `device` and raises the first failure. Takes the GIL if there
// is anything to read.
void raise_deferred(c10::DeviceIndex device);

}  // namespace torchtpu
