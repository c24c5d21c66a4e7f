// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace torchtpu {

// Waits until PyTorch's autograd threads of the devices have put away their last
// backward pass: `backward` returns before they drop its tensors and nodes. False if
// they are still at work after `patience`. The GIL is not held.
bool wait_for_autograd(std::chrono::milliseconds patience);

}  // namespace torchtpu
