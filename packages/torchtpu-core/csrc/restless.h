// SPDX-License-Identifier: Apache-2.0
// Ops on lists of tensors that need new programs again and again. A program is for one way in which
// the tensors of a list lie in their storages and share them; a script that picks them at random (a
// memory to replay) or leaves some out (layers dropped at random) comes with ever new ones. From
// then on such an op is taken apart where it is called.
#pragma once

#include "signature.h"
#include "user_line.h"

#include <ATen/core/stack.h>

namespace torchtpu {

// Notes that a program was made for a call alone, in the stream of this number.
void note_program_of_list(const Signature& signature, const UserLine& line, uint64_t stream);
// Forgets which were.
void forget_programs_of_lists();

// Whether the op was done in parts: then its returns are on the stack instead of its arguments. A
// join of tensors that are there is done by the host, in the device's memory; a `_foreach_` op
// tensor by tensor, as PyTorch's own kernel for any device does it. So is such an op whose tensors
// lie on several devices.
bool take_list_apart(const OpInfo& op, torch::jit::Stack* stack);

}  // namespace torchtpu
