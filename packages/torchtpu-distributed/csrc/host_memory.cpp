// SPDX-License-Identifier: Apache-2.0
#include "host_memory.h"

#include "abort.h"
#include "mailbox.h"

#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <condition_variable>
#include <memory>
#include <mutex>

namespace torchtpu::distributed {
namespace {

namespace py = pybind11;

// A CPU tensor over memory that `owner` keeps.
at::Tensor view_of(uintptr_t address, int64_t elements, c10::ScalarType dtype, py::object owner) {
  PyObject* kept = owner.release().ptr();
  auto release = [kept](void*) {
    if (Py_IsInitialized() != 0) {
      py::gil_scoped_acquire gil;
      Py_DECREF(kept);
    }
  };
  return at::from_blob(reinterpret_cast<void*>(address), {elements}, release,
                       at::TensorOptions().dtype(dtype));
}

// Counts works that have finished, well or not.
struct Finished {
  std::mutex mutex;
  std::condition_variable changed;
  size_t count = 0;
};

// Waits for works of gloo; the GIL is held, and not while it waits. False if aborted.
bool wait_for(const std::vector<c10::intrusive_ptr<c10d::Work>>& works, const Abort& abort) {
  {
    py::gil_scoped_release no_gil;
    auto finished = std::make_shared<Finished>();
    for (const auto& work : works) {
      work->getFuture()->addCallback([finished](c10::ivalue::Future&) {
        std::lock_guard<std::mutex> lock(finished->mutex);
        finished->count += 1;
        finished->changed.notify_all();
      });
    }
    std::unique_lock<std::mutex> lock(finished->mutex);
    while (finished->count < works.size()) {
      if (abort.set.load(std::memory_order_relaxed)) {
        return false;
      }
      finished->changed.wait_for(lock, kSignalPeriod);
      if (finished->count < works.size()) {
        lock.unlock();
        check_signals();
        lock.lock();
      }
    }
  }
  for (const auto& work : works) {
    work->wait();  // raises what went wrong
  }
  return true;
}

py::object read(Mailbox& box, uint64_t number, const Abort& abort) {
  std::string text;
  bool found = poll(abort, [&] { return box.read(number, text); });
  return found ? py::object(py::str(text)) : py::object(py::none());
}

bool post(Mailbox& box, uint64_t number, const std::string& text, const Abort& abort) {
  return poll(abort, [&] { return box.post(number, text); });
}

}  // namespace

void bind_host_memory(py::module_& m) {
  py::class_<Abort>(m, "Abort", "Ends the waits it was given to, once set.")
      .def(py::init<>())
      .def("set", [](Abort& self) { self.set.store(true); }, "End them.");
  py::class_<Mailbox>(m, "Mailbox", "What a group's first rank calls, in memory ranks share.")
      .def(py::init<const std::string&, int, int>(), py::arg("path"), py::arg("rank"),
           py::arg("size"))
      .def("post", &post, py::arg("number"), py::arg("text"), py::arg("abort"),
           "Write an entry; False if aborted.")
      .def("read", &read, py::arg("number"), py::arg("abort"),
           "Wait for an entry; None if aborted.");
  m.def("view_of", &view_of, py::arg("address"), py::arg("elements"), py::arg("dtype"),
        py::arg("owner"), "A CPU tensor over memory that `owner` keeps.");
  m.def("wait_for", &wait_for, py::arg("works"), py::arg("abort"),
        "Wait for works of gloo and raise what went wrong; False if aborted.");
}

}  // namespace torchtpu::distributed
