// SPDX-License-Identifier: Apache-2.0
#include "pending.h"

#include "abort.h"
#include "threads.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace torchtpu::distributed {
namespace {

constexpr size_t kSaidBytes = 600;  // of an entry of the mailbox

// 64 bits of FNV-1a: ranks compare what they call, nobody attacks.
std::string digest_of(const std::string& text) {
  uint64_t hash = 14695981039346656037ull;
  for (unsigned char byte : text) {
    hash = (hash ^ byte) * 1099511628211ull;
  }
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(hash));
  return digits;
}

// The beginning of UTF-8 text, without half a character.
std::string cut(const std::string& text, size_t nbytes) {
  if (text.size() > nbytes) {
    while (nbytes > 0 && (text[nbytes] & 0xC0) == 0x80) {
      --nbytes;
    }
  }
  return text.substr(0, nbytes);
}

PendingPtr make_pending(const std::string& group, std::vector<int> ranks, uint64_t seq, std::string what,
                        std::string line, double timeout_s, std::string kind, uint64_t message,
                        py::object inputs, py::object outputs) {
  auto record = std::make_shared<Pending>();
  record->group = std::make_shared<GroupState>(group, std::move(ranks), timeout_s);
  record->call = std::make_shared<const Call>(std::move(what), std::move(kind), std::move(inputs),
                                              std::move(outputs), 0);
  record->seq = seq;
  record->message = message;
  record->line = std::move(line);
  record->timeout_s = timeout_s;
  return record;
}

PendingPtr next_pending(std::shared_ptr<GroupState> group, std::shared_ptr<Call> call, uint64_t seq,
                        std::string line, double timeout_s) {
  auto record = std::make_shared<Pending>();
  record->group = std::move(group);
  record->call = std::move(call);
  record->seq = seq;
  record->line = std::move(line);
  record->timeout_s = timeout_s;
  return record;
}

std::optional<double> moment(const std::atomic<double>& when) {
  double seconds = when.load();
  return seconds == kNever ? std::nullopt : std::optional<double>(seconds);
}

// Another thread's collective ends in any case: well, or because the job has failed.
void enter_order(GroupState& self) {
  if (!self.order.try_lock()) {
    py::gil_scoped_release no_gil;
    poll(Abort(), [&] { return self.order.try_lock(); });
  }
}

void bind_record(py::module_& m) {
  py::class_<Call, std::shared_ptr<Call>>(m, "Call", "What ranks must agree on.")
      .def(py::init<std::string, std::string, py::object, py::object, int64_t>(), py::arg("what"),
           py::arg("kind"), py::arg("inputs"), py::arg("outputs"), py::arg("device_time_ps"))
      .def_readonly("what", &Call::what)
      .def_readonly("digest", &Call::digest)
      .def_readonly("said", &Call::said)
      .def_readonly("device_time_ps", &Call::device_time_ps);
  py::class_<GroupState, std::shared_ptr<GroupState>>(m, "GroupState", "A group and its order.")
      .def(py::init<std::string, std::vector<int>, double>(), py::arg("name"), py::arg("ranks"),
           py::arg("timeout_s"))
      .def("next", [](GroupState& self) { return ++self.seq; }, "The next collective's number.")
      .def("take_back", [](GroupState& self, uint64_t number) { self.seq.compare_exchange_strong(number, number - 1); },
           py::arg("number"), "Give back the last number, of a collective that could not be called.")
      .def_property_readonly("seq", [](const GroupState& self) { return self.seq.load(); })
      .def_property("timeout_s", [](const GroupState& self) { return self.timeout_s.load(); },
                    [](GroupState& self, double seconds) { self.timeout_s.store(seconds); })
      .def_property("device", [](const GroupState& self) { return self.device.load(); },
                    [](GroupState& self, int device) { self.device.store(device); })
      .def("__enter__", &enter_order, "Hold the group's order; as a context manager.")
      .def("__exit__", [](GroupState& self, const py::args&) { self.order.unlock(); });
  py::class_<Pending, PendingPtr>(m, "Pending", "One collective from its call to its completion.")
      .def(py::init(&make_pending), py::kw_only(), py::arg("group"), py::arg("ranks"),
           py::arg("seq"), py::arg("what"), py::arg("line"), py::arg("timeout_s"),
           py::arg("kind") = "", py::arg("message") = 0, py::arg("inputs") = py::tuple(),
           py::arg("outputs") = py::tuple())
      .def_static("of", &next_pending, py::arg("group"), py::arg("call"), py::arg("seq"),
                  py::arg("line"), py::arg("timeout_s"), "The record of a call of a group.")
      .def_property_readonly("group", [](const Pending& p) { return p.group->name; })
      .def_property_readonly("ranks", [](const Pending& p) { return py::tuple(py::cast(p.group->ranks)); })
      .def_property_readonly("what", [](const Pending& p) { return p.call->what; })
      .def_property_readonly("kind", [](const Pending& p) { return p.call->kind; })
      .def_property_readonly("inputs", [](const Pending& p) { return p.call->inputs; })
      .def_property_readonly("outputs", [](const Pending& p) { return p.call->outputs; })
      .def_property_readonly("call", [](const Pending& p) { return std::const_pointer_cast<Call>(p.call); })
      .def_property_readonly("name", &Pending::name)
      .def_property_readonly("launched", [](const Pending& p) { return p.launched_s.load() != kNever; })
      .def_property_readonly("done", [](const Pending& p) { return p.done_s.load() != kNever; })
      .def_readonly("seq", &Pending::seq)
      .def_readonly("message", &Pending::message)
      .def_readonly("line", &Pending::line)
      .def_readonly("timeout_s", &Pending::timeout_s)
      .def_readonly("record_id", &Pending::record_id)
      .def_readwrite("began_s", &Pending::began_s)
      .def_property("launched_s", [](const Pending& p) { return moment(p.launched_s); },
                    [](Pending& p, double seconds) { p.launched_s.store(seconds); })
      .def_property("done_s", [](const Pending& p) { return moment(p.done_s); },
                    [](Pending& p, double seconds) { p.done_s.store(seconds); })
      .def_readwrite("trouble", &Pending::trouble)
      .def_readwrite("trouble_s", &Pending::trouble_s);
}

}  // namespace

double monotonic_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Call::Call(std::string what_in, std::string kind_in, py::object inputs_in, py::object outputs_in,
           int64_t device_time_ps_in)
    : what(std::move(what_in)),
      kind(std::move(kind_in)),
      device_time_ps(device_time_ps_in),
      digest(digest_of(what)),
      said(digest + "\n" + cut(what, kSaidBytes) + "\n"),
      inputs(std::move(inputs_in)),
      outputs(std::move(outputs_in)) {}

Call::~Call() {
  if (Py_IsInitialized() == 0) {
    inputs.release();  // the interpreter is gone, and the objects with it
    outputs.release();
    return;
  }
  py::gil_scoped_acquire gil;
  inputs = py::object();
  outputs = py::object();
}

std::string Pending::name() const {
  std::string number = seq != 0 ? "number " + std::to_string(seq) + " of " : "";
  std::string where = line.empty() ? "" : " (called at " + line + ")";
  return call->what + ", " + number + "group '" + group->name + "'" + where;
}

PendingPtr Records::add_locked(const PendingPtr& record) {
  PendingPtr oldest;
  if (record->record_id < 0) {
    record->record_id = next_id_++;
    ring_.push_back(record);
    if (ring_.size() > entries_) {
      oldest = std::move(ring_.front());
      ring_.pop_front();
    }
  }
  return oldest;
}

PendingPtr Records::reach_locked(const PendingPtr& record) {
  if (record->seq == 0) {
    return nullptr;
  }
  PendingPtr& last = positions_[record->group];
  return last && last->seq > record->seq ? nullptr : std::exchange(last, record);
}

void Records::add(const PendingPtr& record) {
  PendingPtr oldest;
  std::lock_guard<std::mutex> lock(mutex_);
  oldest = add_locked(record);
}

void Records::begin(const PendingPtr& record) {
  PendingPtr oldest;
  PendingPtr previous;
  std::lock_guard<std::mutex> lock(mutex_);
  oldest = add_locked(record);
  if (std::find(under_way_.begin(), under_way_.end(), record) == under_way_.end()) {
    under_way_.push_back(record);
    count_.store(under_way_.size());
  }
  previous = reach_locked(record);
}

void Records::come(const PendingPtr& record) {
  PendingPtr oldest;
  PendingPtr previous;
  std::lock_guard<std::mutex> lock(mutex_);
  oldest = add_locked(record);
  previous = reach_locked(record);
}

void Records::end(const PendingPtr& record) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto it = std::find(under_way_.begin(), under_way_.end(), record);
  if (it != under_way_.end()) {
    under_way_.erase(it);
    count_.store(under_way_.size());
  }
}

std::vector<PendingPtr> Records::last() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return {ring_.begin(), ring_.end()};
}

std::vector<PendingPtr> Records::under_way() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return under_way_;
}

std::map<std::string, PendingPtr> Records::positions() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::map<std::string, PendingPtr> found;
  for (const auto& [group, record] : positions_) {
    PendingPtr& last = found[group->name];
    if (!last || last->seq < record->seq) {
      last = record;
    }
  }
  return found;
}

void bind_pending(py::module_& m) {
  bind_record(m);
  m.def("is_behind", &is_behind, "Whether this is a thread for what may end up waiting for other ranks.");
  py::class_<Records, std::shared_ptr<Records>>(m, "Records", "The last records of a process, and those under way.")
      .def(py::init<size_t>(), py::arg("entries"))
      .def("add", &Records::add, py::arg("record"), "Keep a record in the ring, once.")
      .def("begin", &Records::begin, py::arg("record"), "The same; it is under way from now on.")
      .def("come", &Records::come, py::arg("record"), "The same as begin, but nobody waits for it yet.")
      .def("end", &Records::end, py::arg("record"), "It is not under way any more.")
      .def("idle", &Records::idle, "Whether nothing is under way.")
      .def("last", &Records::last, "The records of the ring, oldest first.")
      .def("under_way", &Records::under_way, "Those under way, oldest first.")
      .def("positions", &Records::positions, "The last numbered record of each group.");
}

}  // namespace torchtpu::distributed
