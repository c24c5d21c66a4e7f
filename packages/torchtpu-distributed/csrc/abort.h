// SPDX-License-Identifier: Apache-2.0
// Waits of Python's threads that another thread, or Ctrl-C, can end.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace torchtpu::distributed {

// Ends the waits it was given to, once set.
struct Abort {
  std::atomic<bool> set{false};
};

constexpr std::chrono::milliseconds kSignalPeriod{50};

// Lets Python's handlers of signals run; without the GIL. Throws what they raise.
inline void check_signals() {
  pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) {
    throw pybind11::error_already_set();
  }
}

// Asks `condition` again and again, in growing pauses, without the GIL. False if aborted. A
// thread that Python does not know handles no signals.
template <typename Condition>
bool poll(const Abort& abort, Condition&& condition, bool handles_signals = true) {
  constexpr int kYields = 32;
  constexpr std::chrono::microseconds kLongest{1000};
  std::chrono::microseconds pause{20};
  auto signals = std::chrono::steady_clock::now() + kSignalPeriod;
  for (int turn = 0; !condition(); ++turn) {
    if (abort.set.load(std::memory_order_relaxed)) {
      return false;
    }
    if (turn < kYields) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 5 / 4, kLongest);
    if (handles_signals && std::chrono::steady_clock::now() > signals) {
      check_signals();
      signals += kSignalPeriod;
    }
  }
  return true;
}

}  // namespace torchtpu::distributed
