// SPDX-License-Identifier: Apache-2.0
// How the ops of a trace run: as one program, in pieces, or one by one.
#pragma once

#include "trace.h"

namespace torchtpu {

// Marks the results of ops that did not run. One that would have replaced an operand's contents has
// those. The GIL is held.
void fail(std::vector<Node>& nodes);
// What was marked and has contents can be read again: no op that depends on it is still to run.
void keep_contents(std::vector<Node>& nodes);
// Runs a trace of one op. The GIL is held.
void run_single(Trace& trace);
// Runs a trace of several ops. The GIL is held.
void run_together(Trace& trace, FlushRecord& record);

}  // namespace torchtpu
