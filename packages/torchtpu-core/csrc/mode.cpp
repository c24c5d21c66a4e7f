// SPDX-License-Identifier: Apache-2.0
#include "mode.h"

#include "device.h"

#include <functional>

namespace torchtpu {
namespace {

py::object& observer_object() {
  static auto* observer = new py::object(py::none());
  return *observer;
}
std::atomic<bool> observed{false};

// While the observer runs: the ops it calls are its own business.
thread_local bool observing = false;

py::object unobserved(const std::function<py::object()>& function) {
  struct Scope {
    Scope() { observing = true; }
    ~Scope() { observing = false; }
  } scope;
  return function();
}

}  // namespace

ModePolicy& mode_policy() {
  static auto* policy = new ModePolicy();
  return *policy;
}

void require_mode(const OpInfo& op) {
  ensure_started();
  if (!mode_policy().present.load(std::memory_order_relaxed) && !op.structural) {
    py::gil_scoped_acquire gil;
    bridge("raise_no_mode")(op.name);
  }
}

void set_observer(py::object observer) {
  observed.store(!observer.is_none());
  observer_object() = std::move(observer);
}

bool is_observed() { return observed.load(std::memory_order_relaxed) && !observing; }

void observe(const std::string& name, const py::list& args, const std::function<void()>& record,
             const std::function<py::object()>& results) {
  py::object observer = observer_object();
  py::object token = unobserved([&] { return observer.attr("before")(name, args); });
  try {
    py::gil_scoped_release release;
    record();
  } catch (py::error_already_set& error) {
    unobserved([&] { return observer.attr("failed")(token, error.value()); });
    throw;
  }
  unobserved([&] { return observer.attr("after")(token, results()); });
}

}  // namespace torchtpu
