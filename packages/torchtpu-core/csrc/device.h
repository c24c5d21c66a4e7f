// SPDX-License-Identifier: Apache-2.0
// The current device and stream of each thread, the number of devices, and the
// timelines of simulated device time. PyTorch's guard (guard.cpp) sits on top.
#pragma once

#include "value.h"

#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/Stream.h>

namespace torchtpu {

constexpr c10::DeviceType kTpu = c10::DeviceType::PrivateUse1;
constexpr c10::DispatchKey kTpuDispatchKey = c10::DispatchKey::PrivateUse1;

// Number of devices of the target; starts nothing. 0 if the target cannot be read.
c10::DeviceIndex device_count() noexcept;

c10::DeviceIndex current_device();
// Throws DeviceIndexError if there is no such device.
void check_device(c10::DeviceIndex device);
c10::DeviceIndex exchange_device(c10::DeviceIndex device);
void set_device_unchecked(c10::DeviceIndex device) noexcept;
// Makes a device current because the script says so, which stands for the process.
void choose_device(c10::DeviceIndex device);
bool is_device_chosen();

// Starts the runtime (JAX, plugins, lowering tables) once; throws what it raises.
// Fails in a forked child of a process that had started it.
void ensure_started();
bool is_started();
bool in_bad_fork();

// The thread's device while it lives in this scope.
class ScopedDevice {
 public:
  explicit ScopedDevice(c10::DeviceIndex device) : previous_(exchange_device(device)) {}
  ~ScopedDevice() { set_device_unchecked(previous_); }
  ScopedDevice(const ScopedDevice&) = delete;
  ScopedDevice& operator=(const ScopedDevice&) = delete;

 private:
  c10::DeviceIndex previous_;
};

// Streams. Device time is counted per stream, in picoseconds.
c10::Stream current_stream(c10::DeviceIndex device);
c10::Stream exchange_stream(c10::Stream stream);
c10::Stream new_stream(c10::DeviceIndex device);
int64_t stream_time_ps(c10::Stream stream);
// The stream's clock becomes at least `time_ps`.
void stream_wait_until(c10::Stream stream, int64_t time_ps);
// The current stream is busy for `duration_ps` more.
void add_device_time(c10::DeviceIndex device, int64_t duration_ps);
// Moves the stream's clock by 1 ps and returns it: an event, so that later ones are later.
int64_t tick(c10::Stream stream);

// Whether the target has a chip model, and so simulated device time.
bool models_time();
int64_t host_clock_ps();
// The host has seen the device at `time_ps`; what it issues from now on starts no earlier.
void host_waited_until(int64_t time_ps);
// The latest clock of all streams of the device.
int64_t device_time_ps(c10::DeviceIndex device);

// Remembers a value launched since the device was last synchronised, until it dies.
void note_launch(Value& value);
// Waits for them and raises deferred errors.
void synchronize(c10::DeviceIndex device);
// True if nothing is under way.
bool is_idle(c10::DeviceIndex device);

// True if every program launched is over, so that no memory is being read, and no deferred
// check waits for one. Those it finds over need not be waited for again. The GIL is held.
bool is_settled(c10::DeviceIndex device);

// Registers the guard with PyTorch.
void register_guard();

}  // namespace torchtpu
