// SPDX-License-Identifier: Apache-2.0
// What Python sees of the short way of collectives.
#include "direct_works.h"
#include "untraced.h"
#include "work.h"

namespace torchtpu::distributed {
namespace {

void wait_for_storages(const Operations& self, const std::vector<uintptr_t>& storages, const Abort& abort) {
  for (uintptr_t storage : storages) {
    self.wait_for([storage](const Operation& each) { return each.uses(reinterpret_cast<const void*>(storage)); },
                  abort);
  }
}

void wait_for_memory(const Operations& self, uintptr_t first, size_t nbytes, const Abort& abort) {
  self.wait_for([=](const Operation& each) { return each.uses(first, nbytes); }, abort);
}

bool abandon(const Operations& self, const py::object& error) {
  std::vector<OperationPtr> all = self.all();
  for (const OperationPtr& operation : all) {
    operation->fail(error());
  }
  return !all.empty();
}

py::object future_in_order(const py::object& work) {
  Untraced untraced;
  py::object future = py::module_::import("torchtpu_distributed.futures").attr("FutureInOrder")(work);
  work.cast<LaterWork&>().complete(future.cast<torch::jit::PythonFutureWrapper&>());
  return future;
}

py::object future_of_python(const PythonWork& work) {
  Untraced untraced;
  return work.python_future();
}

// PyTorch's own get_future would give Python futures whose callbacks keep no order.
void bind_works(py::module_& m) {
  py::class_<LaterWork, c10d::Work, c10::intrusive_ptr<LaterWork>>(m, "LaterWork", "A collective under way.")
      .def("get_future", &future_in_order, "A future of the results.")
      .def("wait_for_future", &LaterWork::wait_for_future, py::arg("future"),
           py::call_guard<py::gil_scoped_release>(), "Wait until it is over and this future complete.");
  py::class_<PythonWork, c10d::Work, c10::intrusive_ptr<PythonWork>>(m, "PythonWork", "What Python runs.")
      .def("get_future", &future_of_python, "A future of the results.");
}

}  // namespace

void bind_direct(py::module_& m) {
  py::class_<Count, std::shared_ptr<Count>>(m, "Count", "A number that compiled code looks at.")
      .def(py::init<>())
      .def_property("value", [](const Count& self) { return self.value.load(); },
                    [](Count& self, size_t value) { self.value.store(value); });
  py::class_<Operations, std::shared_ptr<Operations>>(m, "Operations", "Those of the short way that run by themselves.")
      .def(py::init<>())
      .def("idle", &Operations::idle, "Whether there are none.")
      .def("wait_for_storages", &wait_for_storages, py::arg("storages"), py::arg("abort"),
           "Wait for those that use storages, given by address.")
      .def("wait_for_memory", &wait_for_memory, py::arg("first"), py::arg("nbytes"), py::arg("abort"),
           "Wait for those that use some of these bytes.")
      .def("abandon", &abandon, py::arg("error"), "End them with what `error()` gives; whether there were any.");
  py::class_<Direct, std::shared_ptr<Direct>>(m, "Direct", "The short way of collectives.")
      .def(py::init<std::shared_ptr<GroupState>, std::shared_ptr<Records>, std::shared_ptr<Abort>,
                    std::shared_ptr<Count>, std::shared_ptr<Operations>, py::object, int, bool>(),
           py::arg("group"), py::arg("records"), py::arg("abort"), py::arg("in_flight"),
           py::arg("operations"), py::arg("owner"), py::arg("rank"), py::arg("in_place"))
      .def("connect", [](Direct& self, BackendPtr gloo, std::shared_ptr<Mailbox> mailbox) {
             self.lane()->connect(std::move(gloo), std::move(mailbox));
           }, py::arg("gloo"), py::arg("mailbox"), "The connections are made: it can be used.")
      .def("share", &Direct::share, py::arg("mailbox"), "Ends of messages are compared from now on, by its letters.")
      .def("settle", &Direct::settle, py::call_guard<py::gil_scoped_release>(),
           "Begin all that were called for later.")
      .def("drain", &Direct::drain, py::call_guard<py::gil_scoped_release>(),
           "Wait until they are over; whether they are, or the job has failed.")
      .def_property("grace_s", [](const Direct& self) { return self.lane()->grace_s.load(); },
                    [](Direct& self, double seconds) { self.lane()->grace_s.store(seconds); },
                    "How long one that cannot begin at once is left to whoever waits for it.")
      .def_property_readonly("is_broken", [](const Direct& self) { return self.lane()->is_broken(); },
                             "Whether another rank calls something else, so that nothing begins any more.")
      .def_property_readonly("begun_behind", [](const Direct& self) { return self.lane()->begun_behind.load(); },
                             "How many nobody waited for in that time.");
  bind_works(m);
}

}  // namespace torchtpu::distributed
