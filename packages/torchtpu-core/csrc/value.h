// SPDX-License-Identifier: Apache-2.0
// Value: one version of a storage's contents. Slot: what a storage owns.
//
// In-place ops do not change a Value; they give the Slot a new one, so recorded
// operands keep the version they saw. A Value is pending (an output of a recorded
// node) until its trace ran, then holds a jax.Array.
#pragma once

#include "geometry.h"
#include "user_line.h"

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <Python.h>

#include <atomic>
#include <cstddef>
#include <string>

namespace torchtpu {

struct Trace;

struct Value : c10::intrusive_ptr_target {
  Value(const Geometry* geometry_in, c10::DeviceIndex device_in)
      : geometry(geometry_in), device(device_in) {}
  ~Value() override;

  // Takes the reference to `array`; the GIL is held.
  void set_array(PyObject* array_in);
  // Gives the reference away (its buffer was donated); the GIL is held.
  PyObject* release_array();

  const Geometry* geometry;
  c10::DeviceIndex device;
  std::atomic<PyObject*> array{nullptr};
  std::atomic<Trace*> trace{nullptr};  // where it is pending
  uint32_t node = 0;                   // its producer there, and which output
  uint32_t output = 0;
  uint32_t uses_in_trace = 0;
  bool failed = false;
  std::atomic<uint32_t> written{0};    // by how many collectives under way: a program that reads it waits
  bool lent = false;                   // its array was given to code outside: others may read it
  uint64_t epoch = 0;                  // the stream of ops that made or first read it, and where;
  uint64_t place = 0;                  // see journal.h
  std::atomic<int64_t> serial{0};      // of its contents, once asked for; see known_numbers.h
  const void* home = nullptr;          // the slot it was made for; only compared
  // Links of the device's list of launched values; see note_launch in device.h.
  Value* next_launched = nullptr;
  Value* previous_launched = nullptr;
  UserLine line;                       // that made it
};
using ValuePtr = c10::intrusive_ptr<Value>;

// Guards a Slot's value; held for nanoseconds.
class SpinLock {
 public:
  void lock() {
    while (flag_.test_and_set(std::memory_order_acquire)) {
    }
  }
  void unlock() { flag_.clear(std::memory_order_release); }

 private:
  std::atomic_flag flag_ = ATOMIC_FLAG_INIT;
};

// Takes a dying value off the list of launched values.
void forget_launch(Value& value);

class Slot {
 public:
  Slot(c10::DeviceIndex device, size_t nbytes, void* address)
      : device_(device), nbytes_(nbytes), address_(address) {}

  ValuePtr get() {
    std::lock_guard<SpinLock> guard(lock_);
    return value_;
  }
  ValuePtr exchange(ValuePtr value) {
    std::lock_guard<SpinLock> guard(lock_);
    std::swap(value_, value);
    return value;
  }
  c10::DeviceIndex device() const { return device_; }
  size_t nbytes() const { return nbytes_; }
  void* address() const { return address_; }

 private:
  SpinLock lock_;
  ValuePtr value_;
  c10::DeviceIndex device_;
  size_t nbytes_;
  void* address_;
};

// Drops a reference, with or without the GIL: without it, later.
void drop_reference(PyObject* object);
// Drops those that wait; the GIL is held.
void drop_dead_references();

// Bytes of concrete values by device: what torch.tpu.memory_allocated() reports.
struct MemoryCounters {
  std::atomic<int64_t> allocated{0};
  std::atomic<int64_t> peak{0};
  std::atomic<int64_t> allocations{0};
  std::atomic<int64_t> frees{0};
  std::atomic<int64_t> allocated_ever{0};
  std::atomic<int64_t> failures{0};  // requests refused for lack of memory
};
constexpr int kMaxDevices = 127;
MemoryCounters& memory_counters(c10::DeviceIndex device);
// The peak is at least `bytes`.
void raise_peak(c10::DeviceIndex device, int64_t bytes);

}  // namespace torchtpu
