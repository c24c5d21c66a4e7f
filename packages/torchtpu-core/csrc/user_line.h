// SPDX-License-Identifier: Apache-2.0
// Where in the user's script an op was called.
#pragma once

#include <Python.h>

#include <torch/csrc/autograd/function.h>

#include <string>

namespace torchtpu {

// The innermost Python frame that is not library code. `code` is kept alive by the
// process-wide cache of code objects, so copying is free.
struct UserLine {
  PyCodeObject* code = nullptr;
  int instruction = -1;

  // "file.py:12 in train"; empty if unknown. Takes the GIL.
  std::string describe() const;
};

// The current thread's line, or for an op of the backward pass the line of the
// forward op it belongs to, unless a hook or a function of the user's computes it. Takes the GIL
// where code is met for the first time.
UserLine current_user_line();

// Its description, after "backward of " where it is a forward op's; made once per place in a
// program. The GIL is held; never freed.
const std::string& current_line_text();

// Whether Python code may be what computes in a node of the backward pass: its own, or that of hooks.
bool calls_python(torch::autograd::Node& node);

}  // namespace torchtpu
