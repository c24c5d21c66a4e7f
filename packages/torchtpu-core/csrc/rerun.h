// SPDX-License-Identifier: Apache-2.0
// Running an op again as it ran the last time.
//
// An op that runs when it is called usually meets operands that lie as they did at the
// last call of its signature. Then its program is known without a trace, plans, a key
// or a look-up in the table of programs.
#pragma once

#include "program.h"

#include <ATen/core/Tensor.h>

namespace torchtpu {

using Results = c10::SmallVector<at::Tensor, 4>;

// Remembers how a trace of one op ran, if it may run so again. The GIL is held.
void remember_run(const Trace& trace, const TraceLayout& layout,
                  const std::shared_ptr<Program>& program);

// Runs a call as the last one of its signature: appends its results, gives the written tensors
// their new values. False if it has to be recorded. Only where ops run when they are called, and for
// ops that run alone.
bool run_again(const Signature& signature, const Call& call, c10::ArrayRef<const at::Tensor*> written,
               Results& results);

}  // namespace torchtpu
