// SPDX-License-Identifier: Apache-2.0
// What the recorder must know of an overload, read once from its schema and row.
#pragma once

#include "bridge.h"
#include "number_range.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace torchtpu {

// How an argument takes part in a call.
enum class ArgRole : int8_t {
  kValue,       // passed to the lowering; a Scalar in it is a run-time operand
  kStatic,      // passed as a constant
  kRuntime,     // a float or int passed as a run-time operand
  kDropped,     // decides the outputs' layout at most; not passed
  kGenerator,   // random state
  kOut,         // an out= tensor: written, not read, not passed
};

// What memory an op's written tensors may share, as CPU's kernels have it.
enum class Sharing : int8_t {
  kAny,        // with operands; not among their own elements
  kExact,      // with an operand that is the same view, element for element
  kItself,     // with no operand but the written tensor itself
  kNothing,    // with no operand, before and after an out= is resized
  kApart,      // likewise, nor among their own elements before that
  kRepeats,    // anything, their own elements too: each gets the same value
};

struct OpArg {
  std::string name;
  ArgRole role = ArgRole::kValue;
  bool keyword = false;
  bool number = false;      // schema type Scalar or Scalar[]
  bool dtype = false;       // schema type ScalarType
  bool written = false;     // marked in the schema, or by the row
  c10::IValue default_value;
};

struct OpInfo {
  std::string name;         // the overload that is called
  // Never released: the dispatcher outlives the interpreter.
  py::handle row;           // torchtpu_core.lowering.table.Lowering
  const c10::OperatorHandle* handle = nullptr;
  const c10::KernelFunction* native_meta = nullptr;  // or null: Python's says shapes and dtypes
  std::vector<OpArg> args;
  std::vector<int> written; // indices of written arguments, in schema order; row's last
  std::vector<int> returns_arg;  // per return: the written argument it aliases, or -1
  int mutates_if = -1;      // bool argument that switches the row's own mutations
  int first_row_mutation = 0;    // position in `written` where those begin
  int generator = -1;
  int output_mask = -1;     // bool list argument that says which results are wanted
  bool random = false;
  uint64_t random_draws = 1; // how many ops' worth of generator offset a call takes
  bool alone = false;       // a program of its own in every mode: a compiled graph
  bool structural = false;  // allowed without an execution mode (copy, fill)
  bool only_out = false;    // the row itself is an out= overload: give it the out shape
  // None, or called when the argument `prepare_if` is true (without one: when a list argument
  // holds masks or host tensors): the result of the op in another form, or None to record it
  // as it is.
  py::handle prepare;
  int prepare_if = -1;
  // None, or called when the written tensor has elements that are one in memory.
  py::handle expanded;
  bool unstated = false;    // PyTorch's meta kernel refuses calls that the row serves
  bool uploads = false;     // host tensors among its operands are copied to the device
  int64_t uid = 0;
  std::vector<double> special;  // values of run-time numbers that are compiled as constants
  bool ranged = false;      // start, end and step are operands; their count is in the key
  bool contracts = false;   // its products follow torch.set_float32_matmul_precision
  Sharing sharing = Sharing::kAny;
  bool joins = false;       // moves the elements of a list of tensors, which the host may do as well
  std::vector<NumberRule> number_rules;  // what holds of its numbers, or CPU PyTorch is asked
  bool in_parts = false;    // PyTorch's kernel for any device takes its lists tensor by tensor
};

// Built from Python: see recorder registration in bindings.cpp.
std::unique_ptr<OpInfo> make_op_info(const std::string& overload, py::object row,
                                     const py::dict& options);

// Registers the recorder for an overload on the tpu dispatch key.
void register_op(std::unique_ptr<OpInfo> info);

}  // namespace torchtpu
