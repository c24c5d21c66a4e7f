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

// One pass per device: a pass from one device to another records an event, which would run
// what the script left pending.
void visit_autograd_thread(c10::DeviceIndex device) {
  // Without memory: the device may never have been started, as where a script is planned.
  c10::Storage nowhere(c10::Storage::use_byte_size_t(), 0,
                       c10::DataPtr(nullptr, c10::Device(kTpu, device)));
  torch::autograd::variable_list input{at::detail::make_tensor<c10::TensorImpl>(
      std::move(nowhere), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      caffe2::TypeMeta::Make<float>())};
  auto node = c10::make_intrusive<Nothing>();
  torch::autograd::edge_list edge{{node, node->add_input_metadata(input[0])}};
  torch::autograd::Engine::get_default_engine().execute(edge, input, /*keep_graph=*/false,
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
      for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
        visit_autograd_thread(device);
      }
    } catch (const std::exception&) {
      // After a fork there are no such threads.
    }
    visited->set_value();
  }).detach();
  return all.wait_for(patience) == std::future_status::ready;
}

}  // namespace torchtpu
