// SPDX-License-Identifier: Apache-2.0
#include "value.h"

#include <mutex>
#include <vector>

namespace torchtpu {
namespace {

std::mutex dead_mutex;
std::vector<PyObject*>& dead_references() {
  static auto* list = new std::vector<PyObject*>();
  return *list;
}

void count_bytes(c10::DeviceIndex device, int64_t bytes) {
  auto& counters = memory_counters(device);
  int64_t now = counters.allocated.fetch_add(bytes) + bytes;
  if (bytes > 0) {
    counters.allocated_ever.fetch_add(bytes);
  }
  (bytes >= 0 ? counters.allocations : counters.frees).fetch_add(1);
  raise_peak(device, now);
}

}  // namespace

MemoryCounters& memory_counters(c10::DeviceIndex device) {
  static auto* counters = new MemoryCounters[kMaxDevices];
  return counters[device];
}

void raise_peak(c10::DeviceIndex device, int64_t bytes) {
  auto& counters = memory_counters(device);
  int64_t peak = counters.peak.load();
  while (bytes > peak && !counters.peak.compare_exchange_weak(peak, bytes)) {
  }
}

void Value::set_array(PyObject* array_in) {
  count_bytes(device, geometry->nbytes);
  array.store(array_in);
}

PyObject* Value::release_array() {
  PyObject* old = array.exchange(nullptr);
  if (old != nullptr) {
    count_bytes(device, -geometry->nbytes);
  }
  return old;
}

Value::~Value() {
  forget_launch(*this);
  drop_reference(release_array());
}

void drop_reference(PyObject* object) {
  if (object == nullptr || Py_IsInitialized() == 0) {
    return;  // without an interpreter there is no object either
  }
  if (PyGILState_Check() != 0) {
    Py_DECREF(object);
    return;
  }
  std::lock_guard<std::mutex> guard(dead_mutex);
  dead_references().push_back(object);
}

void drop_dead_references() {
  std::vector<PyObject*> dead;
  {
    std::lock_guard<std::mutex> guard(dead_mutex);
    dead.swap(dead_references());
  }
  for (PyObject* object : dead) {
    Py_DECREF(object);
  }
}

}  // namespace torchtpu
