// SPDX-License-Identifier: Apache-2.0
// A thread of autograd takes up its next node only when it has dropped what the node
// before it held. So one empty node per device, run as a backward pass of its own, ends
// when they all have.
#include "autograd_threads.h"

#include "device.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <future>
#include <memory>
#include <thread>

namespace torchtpu {
namespace {

struct Nothing final : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override { return {}; }
};

void visit_autograd_threads() {
  torch::autograd::edge_list nodes;
  torch::autograd::variable_list inputs;
  for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
    // Without memory: the device may never have been started, as where a script is planned.
    c10::Device place(kTpu, device);
    inputs.push_back(at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, place)),
        c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), caffe2::TypeMeta::Make<float>()));
    auto node = c10::make_intrusive<Nothing>();
    nodes.emplace_back(node, node->add_input_metadata(inputs.back()));
  }
  torch::autograd::Engine::get_default_engine().execute(nodes, inputs, /*keep_graph=*/false,
                                                        /*create_graph=*/false,
                                                        /*accumulate_grad=*/true);
}

}  // namespace

bool wait_for_autograd(std::chrono::milliseconds patience) {
  auto visited = std::make_shared<std::promise<void>>();
  std::future<void> all = visited->get_future();
  // Of its own, since a node that waits for the main thread would keep it for ever.
  std::thread([visited] {
    try {
      visit_autograd_threads();
    } catch (const std::exception&) {
      // After a fork there are no such threads.
    }
    visited->set_value();
  }).detach();
  return all.wait_for(patience) == std::future_status::ready;
}

}  // namespace torchtpu
