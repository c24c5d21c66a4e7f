// SPDX-License-Identifier: Apache-2.0
// What Python needs to let gloo work on the memory of the simulated device's arrays.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchtpu::distributed {

void bind_host_memory(pybind11::module_& m);

}  // namespace torchtpu::distributed
