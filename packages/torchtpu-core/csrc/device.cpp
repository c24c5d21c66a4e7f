// SPDX-License-Identifier: Apache-2.0
#include "device.h"

#include "bridge.h"
#include "deferred.h"
#include "trace.h"

#include <c10/util/Exception.h>

#include <pthread.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace torchtpu {
namespace {

thread_local c10::DeviceIndex the_device = 0;
thread_local std::unordered_map<int, c10::StreamId> the_streams;

std::atomic<int> devices{-1};
std::atomic<bool> started{false};
std::atomic<bool> chosen{false};  // the script has chosen a device
std::atomic<bool> bad_fork{false};
std::recursive_mutex start_mutex;
bool starting = false;

struct Timelines {
  std::mutex mutex;
  std::map<std::pair<int, c10::StreamId>, int64_t> clock_ps;
  c10::StreamId next_stream = 1;
  int64_t host_ps = 0;  // how far the host has waited: work issued now starts no earlier

  int64_t& clock(c10::Stream stream) {
    int64_t& time = clock_ps[{stream.device_index(), stream.id()}];
    time = std::max(time, host_ps);
    return time;
  }
};

Timelines& timelines() {
  static auto* the_timelines = new Timelines();
  return *the_timelines;
}

// An intrusive list: nothing is allocated for a launch, and a dead value is off it.
struct Launched {
  SpinLock lock;
  Value* first = nullptr;
};

Launched& launched(c10::DeviceIndex device) {
  static auto* lists = new Launched[kMaxDevices];
  return lists[device];
}

void unlink(Launched& list, Value& value) {
  if (value.previous_launched != nullptr) {
    value.previous_launched->next_launched = value.next_launched;
  } else if (list.first == &value) {
    list.first = value.next_launched;
  } else {
    return;  // not on the list
  }
  if (value.next_launched != nullptr) {
    value.next_launched->previous_launched = value.previous_launched;
  }
  value.next_launched = value.previous_launched = nullptr;
}

// The arrays launched since the last synchronisation; the list is empty afterwards.
// The GIL is held, so a linked value's array cannot go away.
std::vector<py::object> take_launched(c10::DeviceIndex device) {
  std::vector<py::object> arrays;
  auto& list = launched(device);
  std::lock_guard<SpinLock> guard(list.lock);
  while (list.first != nullptr) {
    if (PyObject* array = list.first->array.load()) {
      arrays.push_back(py::reinterpret_borrow<py::object>(array));
    }
    unlink(list, *list.first);
  }
  return arrays;
}

// Errors that came up where none may be thrown; raised by the next synchronisation.
struct LateErrors {
  std::mutex mutex;
  std::exception_ptr first[kMaxDevices];
};

LateErrors& late_errors() {
  static auto* errors = new LateErrors();
  return *errors;
}

void flush_quietly(c10::DeviceIndex device, FlushReason reason) {
  try {
    flush_device(device, reason);
  } catch (...) {
    std::lock_guard<std::mutex> guard(late_errors().mutex);
    auto& error = late_errors().first[device];
    error = error ? error : std::current_exception();
  }
}

void raise_late_error(c10::DeviceIndex device) {
  std::exception_ptr error;
  {
    std::lock_guard<std::mutex> guard(late_errors().mutex);
    std::swap(error, late_errors().first[device]);
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

void after_fork_in_child() {
  if (started.load()) {
    bad_fork.store(true);
  }
}

}  // namespace

bool is_over(const py::object& array) {
  if (!bridge("is_ready")(array).cast<bool>()) {
    return false;
  }
  PyObject* done = PyObject_CallMethod(array.ptr(), "block_until_ready", nullptr);
  if (done == nullptr) {
    drop(py::error_already_set());
    return false;
  }
  Py_DECREF(done);
  return true;
}

c10::DeviceIndex device_count() noexcept {
  int known = devices.load();
  if (known >= 0) {
    return static_cast<c10::DeviceIndex>(known);
  }
  try {
    py::gil_scoped_acquire gil;
    known = bridge("device_count")().cast<int>();
    devices.store(known);
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

void choose_device(c10::DeviceIndex device) {
  exchange_device(device);
  chosen.store(true, std::memory_order_relaxed);
}

bool is_device_chosen() { return chosen.load(std::memory_order_relaxed) || the_device > 0; }

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
  if (previous.id() != stream.id()) {  // pending ops belong to the stream they were called on
    flush_quietly(stream.device_index(), FlushReason::kStream);
  }
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
  return all.clock(stream);
}

void stream_wait_until(c10::Stream stream, int64_t time_ps) {
  auto& all = timelines();
  std::lock_guard<std::mutex> guard(all.mutex);
  int64_t& clock = all.clock(stream);
  clock = std::max(clock, time_ps);
}

void add_device_time(c10::DeviceIndex device, int64_t duration_ps) {
  c10::Stream stream = current_stream(device);
  auto& all = timelines();
  std::lock_guard<std::mutex> guard(all.mutex);
  all.clock(stream) += duration_ps;
}

int64_t tick(c10::Stream stream) {
  constexpr int64_t kEventPs = 1;
  auto& all = timelines();
  std::lock_guard<std::mutex> guard(all.mutex);
  return all.clock(stream) += kEventPs;
}

void host_waited_until(int64_t time_ps) {
  auto& all = timelines();
  std::lock_guard<std::mutex> guard(all.mutex);
  all.host_ps = std::max(all.host_ps, time_ps);
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

void note_launch(Value& value) {
  auto& list = launched(value.device);
  std::lock_guard<SpinLock> guard(list.lock);
  value.next_launched = list.first;
  if (list.first != nullptr) {
    list.first->previous_launched = &value;
  }
  list.first = &value;
}

void forget_launch(Value& value) {
  auto& list = launched(value.device);
  std::lock_guard<SpinLock> guard(list.lock);
  unlink(list, value);
}

void synchronize(c10::DeviceIndex device) {
  flush_device(device, FlushReason::kSynchronize);
  raise_late_error(device);
  {
    py::gil_scoped_acquire gil;
    for (const py::object& array : take_launched(device)) {
      bridge("wait")(array);
    }
  }
  host_waited_until(device_time_ps(device));
  raise_deferred(device);
}

bool is_settled(c10::DeviceIndex device) {
  auto& list = launched(device);
  while (are_checks_over(device)) {
    Value* value = nullptr;
    py::object array;
    {
      std::lock_guard<SpinLock> guard(list.lock);
      value = list.first;
      if (value == nullptr) {
        return true;
      }
      if (PyObject* held = value->array.load()) {
        array = py::reinterpret_borrow<py::object>(held);
      }
    }
    if (array && !is_over(array)) {
      return false;
    }
    std::lock_guard<SpinLock> guard(list.lock);
    if (list.first == value) {  // it lives: a dead one is off the list
      unlink(list, *value);
    }
  }
  return false;
}

bool is_idle(c10::DeviceIndex device) {
  py::gil_scoped_acquire gil;
  auto& list = launched(device);
  std::vector<py::object> arrays;
  {
    std::lock_guard<SpinLock> guard(list.lock);
    for (Value* value = list.first; value != nullptr; value = value->next_launched) {
      if (PyObject* array = value->array.load()) {
        arrays.push_back(py::reinterpret_borrow<py::object>(array));
      }
    }
  }
  for (const py::object& array : arrays) {
    if (!bridge("is_ready")(array).cast<bool>()) {
      return false;
    }
  }
  return true;
}

}  // namespace torchtpu
