// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks. XLA has no program for two ends that run at different times, so
// gloo carries them: from the memory of CPU tensors or a simulated device, else by copies on the host. It
// waits for a message in the thread that asks for it, and only another thread can interrupt
// that, so one of ours does from time to time.
#pragma once

#include "direct.h"

namespace torchtpu::distributed {

// One end of a message. `peer`: a rank of the group, or for `receive` -1, whichever sends one.
WorkPtr send(const std::shared_ptr<Direct>& direct, c10d::Backend& gloo, const at::Tensor& tensor, int peer,
             int tag);
WorkPtr receive(const std::shared_ptr<Direct>& direct, c10d::Backend& gloo, const at::Tensor& tensor, int peer,
                int tag);

}  // namespace torchtpu::distributed
