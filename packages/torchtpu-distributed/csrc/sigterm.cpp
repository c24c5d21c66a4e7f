// SPDX-License-Identifier: Apache-2.0
// SIGTERM: launchers send it to all ranks when one has ended, and a rank that waits for that one, or
// that others have waited for, is to say so first. The watch does, and ends the process.
#include "pending.h"

#include <atomic>
#include <csignal>
#include <ctime>
#include <unistd.h>

namespace torchtpu::distributed {
namespace {

// After so long the process ends anyhow: Python, in which the watch runs, may be kept from running.
constexpr time_t kPatienceS = 15;

struct Sigterm {
  pid_t process = 0;
  timer_t timer{};
  bool has_timer = false;
  std::atomic<bool> came{false};
};

Sigterm& sigterm() {
  static auto* the_signal = new Sigterm();
  return *the_signal;
}

// Asynchronous-signal-safe. A process that was forked has no thread that would report.
void on_sigterm(int number) {
  Sigterm& self = sigterm();
  if (self.process == ::getpid() && self.has_timer && !self.came.exchange(true)) {
    itimerspec when{};
    when.it_value.tv_sec = kPatienceS;
    ::timer_settime(self.timer, 0, &when, nullptr);
    return;
  }
  std::signal(number, SIG_DFL);
  ::raise(number);
}

// Does nothing if the user, or a launcher's agent, handles or ignores it.
void hold() {
  struct sigaction present {};
  if (::sigaction(SIGTERM, nullptr, &present) != 0 || present.sa_handler != SIG_DFL) {
    return;
  }
  Sigterm& self = sigterm();
  if (self.process != ::getpid()) {  // timers are not inherited
    sigevent event{};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGTERM;
    self.has_timer = ::timer_create(CLOCK_MONOTONIC, &event, &self.timer) == 0;
    self.process = ::getpid();
  }
  std::signal(SIGTERM, &on_sigterm);
}

void release() {
  struct sigaction present {};
  if (::sigaction(SIGTERM, nullptr, &present) == 0 && present.sa_handler == &on_sigterm) {
    std::signal(SIGTERM, SIG_DFL);
  }
}

void end_process() {
  std::signal(SIGTERM, SIG_DFL);
  ::kill(::getpid(), SIGTERM);
}

}  // namespace

void bind_sigterm(py::module_& m) {
  m.def("hold_sigterm", &hold, "Keep the first SIGTERM back, for some seconds.");
  m.def("release_sigterm", &release, "Do so no more.");
  m.def("sigterm_came", [] { return sigterm().came.load(); }, "Whether one is kept back.");
  m.def("end_by_sigterm", &end_process, "End the process as SIGTERM does.");
}

}  // namespace torchtpu::distributed
