// SPDX-License-Identifier: Apache-2.0
// Threads for what may end up waiting for other ranks, one for each such task at a time. They
// are kept for later tasks, never joined, and ask nothing of Python that may have ended.
#pragma once

#include <functional>

namespace torchtpu::distributed {

// Runs a task, which throws nothing, in a thread that has nothing else to do.
void run_behind(std::function<void()> task);

// Whether the calling thread is one of those: what it is told, no user is.
bool is_behind();

}  // namespace torchtpu::distributed
