// SPDX-License-Identifier: Apache-2.0
// SIGTERM while a collective is under way: launchers send it to all ranks when one has ended, and a
// rank that waits for that one is to say so first. At any other time it ends the process as ever.
#include "pending.h"

#include <csignal>
#include <unistd.h>

namespace torchtpu::distributed {
namespace {

struct Sigterm {
  std::shared_ptr<Records> records;
  pid_t process = 0;
  std::atomic<bool> came{false};
};

Sigterm& sigterm() {
  static auto* the_signal = new Sigterm();
  return *the_signal;
}

// Asynchronous-signal-safe. A process that was forked has no thread that would report.
void on_sigterm(int number) {
  Sigterm& self = sigterm();
  if (self.process == ::getpid() && !self.records->idle() && !self.came.exchange(true)) {
    return;
  }
  std::signal(number, SIG_DFL);
  ::raise(number);
}

// Does nothing if the user, or a launcher's agent, handles or ignores it.
void hold(std::shared_ptr<Records> records) {
  struct sigaction present {};
  if (::sigaction(SIGTERM, nullptr, &present) != 0 || present.sa_handler != SIG_DFL) {
    return;
  }
  sigterm().records = std::move(records);
  sigterm().process = ::getpid();
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
  m.def("hold_sigterm", &hold, py::arg("records"), "Keep SIGTERM back while one of the records is under way.");
  m.def("release_sigterm", &release, "Do so no more.");
  m.def("sigterm_came", [] { return sigterm().came.load(); }, "Whether one is kept back.");
  m.def("end_by_sigterm", &end_process, "End the process as SIGTERM does.");
}

}  // namespace torchtpu::distributed
