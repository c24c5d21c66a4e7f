// SPDX-License-Identifier: Apache-2.0
// Programs for ops that are about to run one by one, compiled side by side.
//
// The first time a stream of ops runs, nearly each op needs a program, and XLA compiles a
// small one on a single core. The ops that follow are known, so their programs need not
// wait for one another.
#pragma once

#include "program.h"

#include <span>

namespace torchtpu {

// Builds what `layout`, of the one node of `current`, and the nodes of `rest` lack, if it is
// more than one program; whether any was compiled. What cannot be built is left to the op itself, which
// raises the error. The GIL is held.
bool build_ahead(const Trace& current, const TraceLayout& layout, std::span<Node> rest);

}  // namespace torchtpu
