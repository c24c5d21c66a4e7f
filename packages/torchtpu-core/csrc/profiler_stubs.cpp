// SPDX-License-Identifier: Apache-2.0
// What PyTorch's older profiler (torch.autograd.profiler.profile(use_device="tpu")) asks of a
// device: an event before and after each op. Times are simulated device time where a chip is
// modelled, else the host's clock.
#include "device.h"

#include <torch/csrc/profiler/stubs/base.h>

#include <chrono>

namespace torchtpu {
namespace {

using torch::profiler::impl::ProfilerVoidEventStub;

// An event is a time. Reading it launches nothing: the profiler asks also while a trace is lowered.
int64_t time_of(const ProfilerVoidEventStub& event) {
  return *static_cast<const int64_t*>(event.get());
}

struct Stubs final : torch::profiler::impl::ProfilerStubs {
  void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event,
              int64_t* cpu_ns) const override {
    c10::DeviceIndex index = current_device();
    if (device != nullptr) {
      *device = index;
    }
    if (cpu_ns != nullptr) {
      auto now = std::chrono::system_clock::now().time_since_epoch();
      *cpu_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
    }
    int64_t time_ps = models_time() ? tick(current_stream(index)) : host_clock_ps();
    *event = std::make_shared<int64_t>(time_ps);
  }
  float elapsed(const ProfilerVoidEventStub* from, const ProfilerVoidEventStub* to) const override {
    constexpr double kPsPerUs = 1e6;
    return static_cast<float>(static_cast<double>(time_of(*to) - time_of(*from)) / kPsPerUs);
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> op) const override {
    for (int device = 0; device < device_count(); ++device) {
      op(device);
    }
  }
  void synchronize() const override {
    for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
      torchtpu::synchronize(device);
    }
  }
};

const bool registered = [] {
  static Stubs stubs;
  torch::profiler::impl::registerPrivateUse1Methods(&stubs);
  return true;
}();

}  // namespace
}  // namespace torchtpu
