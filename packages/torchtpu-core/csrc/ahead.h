// SPDX-License-Identifier: Apache-2.0
// Programs for ops that are about to run and have none.
//
// The first time a stream of ops runs, nearly each op needs a program, and XLA compiles a
// small one on a single core. The ops that follow are known, so their programs need not
// wait for one another, and those of a short stream can be one.
#pragma once

#include "program.h"

#include <span>

namespace torchtpu {

// Builds what `layout`, of the one node of `current`, and the nodes of `rest` lack, if it is
// more than one program; whether any was compiled. What cannot be built is left to the op itself, which
// raises the error. The GIL is held.
bool build_ahead(const Trace& current, const TraceLayout& layout, std::span<Node> rest);

// Builds one program for all of a short trace that was never seen before, if most of its ops have none
// of their own; whether it did. XLA takes a fraction of the time for it that it takes for one program per op.
// Each op counts once: a script whose traces always differ has the programs of its ops from then on. The
// GIL is held.
bool build_at_first_sight(Trace& trace, const FlushRecord& record);

}  // namespace torchtpu
