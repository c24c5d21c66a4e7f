// SPDX-License-Identifier: Apache-2.0
// The execution mode in force, and who watches the ops.
#pragma once

#include "op_info.h"

#include <functional>

namespace torchtpu {

// When recorded ops run. Set by the execution mode's plugin.
struct ModePolicy {
  std::atomic<bool> present{false};     // without a mode only structural ops run
  std::atomic<bool> flush_each{true};   // after every op
  std::atomic<bool> synchronous{false}; // and wait for it
};
ModePolicy& mode_policy();

// Starts the device; throws if no mode may run this op.
void require_mode(const OpInfo& op);

// An object with before(name, args) -> token, after(token, results) and
// failed(token, error), called around every op (Debug); None: nobody watches. Ops that
// it calls itself are not observed. The GIL is held.
void set_observer(py::object observer);

// Whether an op called now is observed.
bool is_observed();

// Runs `record` between the observer's calls; `results` lists what it made. The GIL is held.
void observe(const std::string& name, const py::list& args, const std::function<void()>& record,
             const std::function<py::object()>& results);

}  // namespace torchtpu
