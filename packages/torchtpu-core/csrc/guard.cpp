// SPDX-License-Identifier: Apache-2.0
// PyTorch's device guard for `tpu`: devices, streams and events.
//
// Work of one device runs in the order it was issued, whatever its stream, so
// ordering between streams always holds; streams keep separate clocks of simulated
// device time. On targets without a chip model an event reads the host's clock
// after the device has caught up.
#include "bridge.h"
#include "device.h"
#include "trace.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>

namespace torchtpu {
bool models_time() {
  static const bool simulated = [] {
    py::gil_scoped_acquire gil;
    return bridge("models_time")().cast<bool>();
  }();
  return simulated;
}

int64_t host_clock_ps() {
  auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() * 1000;
}

namespace {

struct Event {
  int64_t time_ps = 0;
  c10::DeviceIndex device = 0;  // of the stream that recorded it
};

c10::DeviceIndex checked_index(c10::Device device) {
  auto index = device.has_index() ? device.index() : current_device();
  check_device(index);
  return index;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kTpu; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return c10::Device(kTpu, exchange_device(device.index()));
  }
  c10::Device getDevice() const override { return c10::Device(kTpu, current_device()); }
  // `torch.accelerator.set_device_index` calls it with the GIL. Autograd's engine calls it
  // without, in each of its threads: those choose nothing.
  void setDevice(c10::Device device) const override {
    PyGILState_Check() ? choose_device(device.index()) : (void)exchange_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    set_device_unchecked(device.index());
  }
  c10::Stream getStream(c10::Device device) const override {
    return current_stream(checked_index(device));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kTpu, checked_index(device)), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return new_stream(checked_index(device));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(static_cast<intptr_t>(stream.id()));
  }

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "Event device ",
                static_cast<int>(device), " does not match recording stream's device ",
                static_cast<int>(stream.device_index()), ".");
    if (*event == nullptr) {
      *event = new Event();
    }
    auto* the_event = static_cast<Event*>(*event);
    flush_device(stream.device_index(), FlushReason::kEvent);
    if (models_time()) {
      the_event->time_ps = tick(stream);
    } else {
      synchronize(stream.device_index());
      the_event->time_ps = host_clock_ps();
    }
    the_event->device = stream.device_index();
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr && models_time()) {
      stream_wait_until(stream, static_cast<Event*>(event)->time_ps);
    }
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || is_idle(static_cast<Event*>(event)->device);
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      synchronize(static_cast<Event*>(event)->device);
    }
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr,
                "Both events must be recorded before calculating elapsed time.");
    constexpr double kPsPerMs = 1e9;
    return static_cast<double>(static_cast<Event*>(end)->time_ps -
                               static_cast<Event*>(start)->time_ps) / kPsPerMs;
  }

  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability capability;
    capability.capability_data.capability_bits = 0;
    for (auto dtype : {c10::kBool, c10::kByte, c10::kChar, c10::kShort, c10::kInt, c10::kLong,
                       c10::kHalf, c10::kBFloat16, c10::kFloat, c10::kDouble, c10::kComplexFloat,
                       c10::kComplexDouble}) {
      capability.capability_data.capability_bits |= 1ull << static_cast<int>(dtype);
    }
    return capability;
  }
  bool queryStream(const c10::Stream& stream) const override {
    return is_idle(stream.device_index());
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    synchronize(stream.device_index());
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    check_device(device);
    synchronize(device);
  }
};

}  // namespace

void register_guard() {
  static Guard guard;
  c10::impl::DeviceGuardImplRegistrar registrar(kTpu, &guard);
}

}  // namespace torchtpu
