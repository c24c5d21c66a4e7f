// SPDX-License-Identifier: Apache-2.0
// A compiled program as C++ runs it, and the table of all programs of this process.
#pragma once

#include "bridge.h"
#include "trace_key.h"

#include <memory>

namespace torchtpu {

// Filled from what torchtpu_core.runtime.programs returns; the GIL is held. The last who holds one
// may let go of it without the GIL.
struct Program {
  enum class State : int8_t { kPending, kReady, kRefused };
  std::atomic<State> state{State::kPending};
  py::object call;            // (operands..., scalar words) -> sequence of arrays
  py::object description;     // for messages of its checks
  std::vector<int> position;  // live output -> index in the call's result
  bool has_checks = false;
  bool compiled = true;       // for this trace, rather than before, for another one
  int64_t device_time_ps = 0;
  int64_t new_bytes = 0;      // results and temporaries of a run
  // Scalars of the last run, and the same on the device once they have come twice.
  std::vector<ScalarWords> last_scalars;
  py::object scalars_on_device;

  Program() = default;
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  bool ready() const { return state.load(std::memory_order_acquire) == State::kReady; }
  void fill(py::object made);
};

// A program for a structure, with the results it hands out.
struct Variant {
  Liveness liveness;
  std::shared_ptr<Program> program;
};

// The ready program for a layout, or the pending one if none is ready, or null. A program
// that hands out more results than anybody needs will do; then `layout` is made to fit.
std::shared_ptr<Program> find_program(Trace& trace, TraceLayout& layout);
// Adds a program to the table, or returns the one that got there first. The GIL is held.
//
// Programs that only pass other sizes to one that was there are forgotten once they are many: a
// script may have sizes that never come again.
std::shared_ptr<Program> add_program(const TraceKey& key, const Liveness& liveness,
                                     std::shared_ptr<Program> program);

// Starts a ready program; its results, as Python returns them. The GIL is held.
py::object launch(Program& program, c10::ArrayRef<ValuePtr> operands,
                  c10::ArrayRef<ScalarWords> scalars, c10::DeviceIndex device);

// Lowers and compiles now. The GIL is held.
std::shared_ptr<Program> build_program(const Trace& trace, const TraceLayout& layout);

// Runs a ready program on the layout's operands and hands out the results. The GIL is held.
void run_program(Trace& trace, TraceLayout& layout, Program& program);

}  // namespace torchtpu
