// SPDX-License-Identifier: Apache-2.0
#include "recomputation.h"

#include "user_line.h"

#include <ATen/SavedTensorHooks.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <atomic>

namespace torchtpu {
namespace {

std::atomic<bool> cuts{false};

}  // namespace

bool in_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

bool is_recomputation() {
  if (!c10::GradMode::is_enabled() || !in_backward()) {
    return false;
  }
  if (at::SavedTensorDefaultHooks::get_hooks().has_value()) {
    return true;  // checkpointing watches what they save
  }
  // Ops of a backward pass with create_graph=True are none. torch.func.grad keeps no graph beside it,
  // so only a function of the script, such as reentrant checkpointing, may compute again.
  auto node = torch::autograd::get_current_node();
  return !torch::autograd::get_current_graph_task_keep_graph() && node && calls_python(*node);
}

bool cuts_recomputation() { return cuts.load(std::memory_order_relaxed); }
void cut_recomputation(bool on) { cuts.store(on); }

}  // namespace torchtpu
