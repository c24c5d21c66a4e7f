// SPDX-License-Identifier: Apache-2.0
#include "deferred.h"

#include "value.h"

#include <algorithm>
#include <deque>
#include <mutex>

namespace torchtpu {
namespace {

struct Check {
  py::object flags;
  py::object program;
  std::vector<UserLine> lines;
  bool over = false;  // known to be computed
};

struct Deferred {
  std::mutex mutex;
  std::deque<Check> checks[kMaxDevices];
  std::atomic<int> pending{0};
};

Deferred& deferred() {
  static auto* the_deferred = new Deferred();
  return *the_deferred;
}

constexpr size_t kLimit = 256;

// Raises if a check failed; the GIL is held.
void read(const Check& check) {
  py::object failed;
  try {
    failed = bridge("failed_check")(check.program, check.flags);
  } catch (py::error_already_set& error) {
    rethrow_at(error, check.lines.empty() ? UserLine{} : check.lines.back());
  }
  if (failed.is_none()) {
    return;
  }
  auto tuple = failed.cast<py::tuple>();
  auto node = tuple[2].cast<size_t>();
  std::string line = node < check.lines.size() ? check.lines[node].describe() : "";
  bridge("raise_check")(tuple[0], tuple[1], line);
}

}  // namespace

void rethrow_at(const py::error_already_set& error, const UserLine& line) {
  bridge("add_line_of_run")(error.value(), line.describe());
  throw;
}

void defer(c10::DeviceIndex device, py::object flags, py::object program,
           std::vector<UserLine> lines) {
  size_t size;
  {
    std::lock_guard<std::mutex> guard(deferred().mutex);
    auto& checks = deferred().checks[device];
    checks.push_back({std::move(flags), std::move(program), std::move(lines)});
    deferred().pending.fetch_add(1);
    size = checks.size();
  }
  if (size > kLimit) {
    raise_deferred(device);
  }
}

bool are_checks_over(c10::DeviceIndex device) {
  while (deferred().pending.load() != 0) {
    py::object flags;  // of the first that may be under way; asked about without the lock
    {
      std::lock_guard<std::mutex> guard(deferred().mutex);
      auto& checks = deferred().checks[device];
      auto it = std::find_if(checks.begin(), checks.end(), [](const Check& check) { return !check.over; });
      if (it == checks.end()) {
        return true;
      }
      flags = it->flags;
    }
    if (!is_over(flags)) {
      return false;
    }
    std::lock_guard<std::mutex> guard(deferred().mutex);
    for (Check& check : deferred().checks[device]) {
      check.over = check.over || check.flags.is(flags);
    }
  }
  return true;
}

void raise_deferred(c10::DeviceIndex device) {
  if (deferred().pending.load() == 0) {
    return;
  }
  py::gil_scoped_acquire gil;
  std::deque<Check> checks;
  {
    std::lock_guard<std::mutex> guard(deferred().mutex);
    checks.swap(deferred().checks[device]);
    deferred().pending.fetch_sub(static_cast<int>(checks.size()));
  }
  for (const Check& check : checks) {
    read(check);
  }
}

}  // namespace torchtpu
