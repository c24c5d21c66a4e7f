// SPDX-License-Identifier: Apache-2.0
#include "device.h"

#include "bridge.h"
#include "deferred.h"
#include "trace.h"

#include <c10/util/Exception.h>

#include <pthread.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <unordered_map>

namespace torchtpu {
namespace {

thread_local c10::DeviceIndex the_device = 0;
thread_local std::unordered_map<int, c10::StreamId> the_streams;

std::atomic<int> count{-1};
std::atomic<bool> started{false};
std::atomic<bool> bad_fork{false};
std::recursive_mutex start_mutex;
bool starting = false;

struct Timelines {
  std::mutex mutex;
  std::map<std::pair<int, c10::StreamId>, int64_t> clock_ps;
  c10::StreamId next_stream = 1;
};

Timelines& timelines() {
  static auto* the_timelines = new Timelines();
  return *the_timelines;
}

struct Launched {
  std::mutex mutex;
  std::deque<c10::weak_intrusive_ptr<Value>> values[kMaxDevices];
};

Launched& launched() {
  static auto* the_launched = new Launched();
  return *the_launched;
}
constexpr size_t kLaunchedLimit = 2048;

void after_fork_in_child() {
  if (started.load()) {
    bad_fork.store(true);
  }
}

std::deque<c10::weak_intrusive_ptr<Value>> take_launched(c10::DeviceIndex device) {
  std::lock_guard<std::mutex> guard(launched().mutex);
  std::deque<c10::weak_intrusive_ptr<Value>> values;
  values.swap(launched().values[device]);
  return values;
}

}  // namespace

c10::DeviceIndex device_count() noexcept {
  int known = count.load();
  if (known >= 0) {
    return static_cast<c10::DeviceIndex>(known);
  }
  try {
    py::gil_scoped_acquire gil;
    known = bridge("device_count")().cast<int>();
    count.store(known);
  } catch (...) {
    return 0;
  }
  return static_cast<c10::DeviceIndex>(known);
}

c10::DeviceIndex current_device() { return the_device; }

void check_device(c10::DeviceIndex device) {
  if (device < 0 || device >= device_count()) {
    py::gil_scoped_acquire gil;
    bridge("raise_no_such_device")(static_cast<int>(device));
  }
}

c10::DeviceIndex exchange_device(c10::DeviceIndex device) {
  if (device != the_device) {
    check_device(device);
  }
  return std::exchange(the_device, device);
}

void set_device_unchecked(c10::DeviceIndex device) noexcept { the_device = device; }

void ensure_started() {
  if (started.load(std::memory_order_acquire) && !bad_fork.load(std::memory_order_relaxed)) {
    return;
  }
  TORCH_CHECK(!bad_fork.load(),
              "Cannot re-initialize TPU in forked subprocess. To use TPU with multiprocessing, "
              "you must use the 'spawn' start method");
  py::gil_scoped_acquire gil;
  {
    py::gil_scoped_release release;
    start_mutex.lock();
  }
  std::unique_lock<std::recursive_mutex> lock(start_mutex, std::adopt_lock);
  if (started.load() || starting) {
    return;
  }
  starting = true;
  try {
    bridge("start")();
  } catch (...) {
    starting = false;
    throw;
  }
  pthread_atfork(nullptr, nullptr, &after_fork_in_child);
  starting = false;
  started.store(true, std::memory_order_release);
}

bool is_started() { return started.load(); }
bool in_bad_fork() { return bad_fork.load(); }

c10::Stream current_stream(c10::DeviceIndex device) {
  auto it = the_streams.find(device);
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kTpu, device),
                     it == the_streams.end() ? 0 : it->second);
}

c10::Stream exchange_stream(c10::Stream stream) {
  c10::Stream previous = current_stream(stream.device_index());
  the_streams[stream.device_index()] = stream.id();
  return previous;
}

c10::Stream new_stream(c10::DeviceIndex device) {
  auto& all = timelines();
  std::lock_guard<std::mutex> guard(all.mutex);
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kTpu, device), all.next_stream++);
}

int64_t stream_time_ps(c10::Stream stream) {
  auto& all = timelines();
  std::lock_guard<std::mutex> guard(all.mutex);
  return all.clock_ps[{stream.device_index(), stream.id()}];
}

void stream_wait_until(c10::Stream stream, int64_t time_ps) {
  auto& all = timelines();
  std::lock_guard<std::mutex> guard(all.mutex);
  int64_t& clock = all.clock_ps[{stream.device_index(), stream.id()}];
  clock = std::max(clock, time_ps);
}

void add_device_time(c10::DeviceIndex device, int64_t duration_ps) {
  c10::Stream stream = current_stream(device);
  auto& all = timelines();
  std::lock_guard<std::mutex> guard(all.mutex);
  all.clock_ps[{device, stream.id()}] += duration_ps;
}

int64_t device_time_ps(c10::DeviceIndex device) {
  auto& all = timelines();
  std::lock_guard<std::mutex> guard(all.mutex);
  int64_t latest = 0;
  for (const auto& [key, clock] : all.clock_ps) {
    if (key.first == device) {
      latest = std::max(latest, clock);
    }
  }
  return latest;
}

void note_launch(const ValuePtr& value) {
  std::lock_guard<std::mutex> guard(launched().mutex);
  auto& values = launched().values[value->device];
  values.emplace_back(value);
  if (values.size() > kLaunchedLimit) {
    std::erase_if(values, [](const auto& weak) { return weak.expired(); });
    while (values.size() > kLaunchedLimit / 2) {
      values.pop_front();  // old enough: XLA's own queue is far shorter
    }
  }
}

void synchronize(c10::DeviceIndex device) {
  flush_device(device, "synchronize");
  for (const auto& weak : take_launched(device)) {
    ValuePtr value = weak.lock();
    if (value && value->array.load() != nullptr) {
      py::gil_scoped_acquire gil;
      if (PyObject* array = value->array.load()) {
        bridge("wait")(py::reinterpret_borrow<py::object>(array));
      }
    }
  }
  raise_deferred(device);
}

bool is_idle(c10::DeviceIndex device) {
  for (const auto& weak : take_launched(device)) {
    ValuePtr value = weak.lock();
    if (!value || value->array.load() == nullptr) {
      continue;
    }
    py::gil_scoped_acquire gil;
    PyObject* array = value->array.load();
    if (array != nullptr && !bridge("is_ready")(py::reinterpret_borrow<py::object>(array)).cast<bool>()) {
      note_launch(value);
      return false;
    }
  }
  return true;
}

}  // namespace torchtpu
