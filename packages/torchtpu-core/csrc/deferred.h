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

// Whether flags of any device have not been read.
bool has_deferred();

// Reads the flags of `device` and raises the first failure. Takes the GIL if there
// is anything to read.
void raise_deferred(c10::DeviceIndex device);

}  // namespace torchtpu
