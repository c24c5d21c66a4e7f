// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing: ops of the forward pass that the backward pass computes again, so that
// their results need not be kept. A program that holds both must not compute them once.
#pragma once

namespace torchtpu {

// Whether an op recorded now is part of a backward pass.
bool in_backward();

// Whether an op recorded now is such a recomputation: a backward pass is under way, and gradients are
// enabled for other reasons than that it has a gradient itself.
bool is_recomputation();

// Whether Fused Eager starts a new trace where recomputation starts: for compilers that drop the
// barriers which keep it late. Set when the device starts.
bool cuts_recomputation();
void cut_recomputation(bool on);

}  // namespace torchtpu
