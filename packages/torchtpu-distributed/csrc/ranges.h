// SPDX-License-Identifier: Apache-2.0
// Which module of FSDP2's a collective belongs to. Layers of one shape, called in a loop, give
// collectives that differ in nothing else: neither in shape nor in the user's line. FSDP2 says it
// in the name of the profiler's range around each, `FSDP::all_gather (layers.3)`, which is part of
// what ranks compare. Ranges that users name may differ between ranks and do not count.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>

namespace torchtpu::distributed {

// The innermost range of a collective of FSDP2's on this thread, as all ranks name it; null if none.
std::shared_ptr<const std::string> fsdp_range();

void bind_ranges(pybind11::module_& m);

}  // namespace torchtpu::distributed
