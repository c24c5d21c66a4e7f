// SPDX-License-Identifier: Apache-2.0
#include "direct.h"

#include "device_api.h"
#include "untraced.h"

#include <ATen/ops/from_blob.h>

namespace torchtpu::distributed {
namespace {

// The work of a collective that is over.
class FinishedWork : public c10d::Work {
 public:
  FinishedWork(std::shared_ptr<const Direct> direct, std::vector<at::Tensor> tensors)
      : direct_(std::move(direct)), tensors_(std::move(tensors)) {}

  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  std::vector<at::Tensor> result() override { return tensors_; }
  void synchronize() override { direct_->check(); }
  void blockCurrentStream() override { direct_->check(); }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    direct_->check();
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return finished_future(tensors_);
  }

 private:
  std::shared_ptr<const Direct> direct_;
  std::vector<at::Tensor> tensors_;
};

at::Tensor view_of(const Memory& memory, const at::Tensor* tensor) {
  if (memory.address == nullptr) {
    return at::Tensor();
  }
  return at::from_blob(memory.address, {tensor->numel()}, at::TensorOptions().dtype(tensor->scalar_type()));
}

void append_operand(std::string& key, const at::Tensor& tensor) {
  auto word = [&](int64_t value) { key.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  word(static_cast<int64_t>(tensor.scalar_type()));
  word(tensor.dim());
  for (int64_t size : tensor.sizes()) {
    word(size);
  }
}

std::string key_of(const Request& request) {
  std::string key = request.kind;
  key.append(request.op).append({static_cast<char>(request.root), static_cast<char>(request.root >> 8)});
  if (request.operand != nullptr) {
    append_operand(key, *request.operand);
    append_operand(key, *request.result);
  }
  return key;
}

}  // namespace

Direct::Direct(std::shared_ptr<GroupState> group, std::shared_ptr<Records> records,
               std::shared_ptr<Abort> abort, std::shared_ptr<Count> in_flight, py::object owner, int rank, bool in_place)
    : rank_(rank),
      in_place_(in_place),
      group_(std::move(group)),
      records_(std::move(records)),
      abort_(std::move(abort)),
      in_flight_(std::move(in_flight)),
      owner_(py::weakref(owner)) {}

Direct::~Direct() {
  if (Py_IsInitialized() == 0) {
    owner_.release();  // the interpreter is gone, and the object with it
    return;
  }
  py::gil_scoped_acquire gil;
  owner_ = py::object();
}

void Direct::connect(BackendPtr gloo, std::shared_ptr<Mailbox> mailbox) {
  gloo_ = std::move(gloo);
  mailbox_ = std::move(mailbox);
  connected_.store(true, std::memory_order_release);
}

void Direct::check() const {
  if (!abort_->set.load(std::memory_order_relaxed)) {
    return;
  }
  py::gil_scoped_acquire gil;
  Untraced untraced;
  owner_().attr("check")();
}

bool Direct::is_quiet() const { return !abort_->set.load() && in_flight_->value.load() == 0; }

bool Direct::ready_for(const Request& request) const {
  if (!connected_.load(std::memory_order_acquire) || !is_quiet()) {
    return false;
  }
  auto device = static_cast<c10::DeviceIndex>(group_->device.load());
  if (request.operand == nullptr) {
    return device >= 0;
  }
  bool shared = !request.in_place && request.operand != request.result &&
                request.operand->storage().is_alias_of(request.result->storage());
  return request.operand->device().index() == device && request.result->device().index() == device &&
         request.operand->numel() > 0 && request.result->numel() > 0 && !shared;
}

std::shared_ptr<const Call> Direct::known(const Request& request) {
  std::string key = key_of(request);
  auto it = calls_.find(key);
  if (it != calls_.end()) {
    return it->second;
  }
  Untraced untraced;
  py::list operands;
  py::list results;
  if (request.operand != nullptr) {
    operands.append(*request.operand);
    results.append(*request.result);
  }
  auto call = owner_().attr("describe")(request.kind, request.op, request.root, operands, results)
                  .cast<std::shared_ptr<Call>>();
  calls_.emplace(std::move(key), call);
  return call;
}

Direct::Outcome Direct::agree(const Pending& record) {
  if (!mailbox_) {
    return Outcome::kDone;
  }
  if (rank_ == 0) {
    bool posted = poll(*abort_, [&] { return mailbox_->post(record.seq, record.call->said, record.line); });
    return posted ? Outcome::kDone : Outcome::kEnded;
  }
  if (!await(*mailbox_, record.seq, *abort_)) {
    return Outcome::kEnded;
  }
  std::string_view theirs = mailbox_->text(record.seq);
  bool same = theirs.starts_with(record.call->digest);
  if (!same) {
    other_ = theirs;
  }
  mailbox_->taken(record.seq);
  return same ? Outcome::kDone : Outcome::kDiffers;
}

Direct::Outcome Direct::perform(Pending& record, const std::function<std::vector<WorkPtr>(End&)>& begin) {
  Outcome outcome = agree(record);
  if (outcome != Outcome::kDone) {
    return outcome;
  }
  End end;
  std::vector<WorkPtr> works = begin(end);
  record.launched_s.store(monotonic_s());
  if (!wait_for(works, *abort_)) {
    return Outcome::kEnded;
  }
  if (end) {
    end();
  }
  record.done_s.store(monotonic_s());
  return Outcome::kDone;
}

void Direct::report(const char* how, const PendingPtr& record, const std::string& text) {
  Untraced untraced;
  owner_().attr(how)(record, readable(text));
  throw std::runtime_error(record->name() + ": " + text);
}

std::string Direct::line() const {
  const std::string& known = device_api().user_line();  // none in a thread of autograd's
  return known.empty() ? owner_().attr("main_line")().cast<std::string>() : known;
}

Memory Direct::memory(const at::Tensor& tensor, bool write) const {
  if (!in_place_ || !is_quiet() || tensor.numel() == 0) {
    return {};
  }
  device_api().flush(tensor.device().index());
  return device_api().memory(tensor, write);
}

PendingPtr Direct::message(const char* kind, int peer, const at::Tensor& tensor) {
  std::string key = std::string(kind) + std::to_string(peer) + ":";
  append_operand(key, tensor);
  auto& [pair, call] = messages_[key];
  if (!call) {
    Untraced untraced;
    call = owner_().attr("describe_message")(kind, peer, tensor).cast<std::shared_ptr<Call>>();
    if (peer < 0) {
      pair = group_;
    } else {
      std::vector<int> ranks{group_->ranks.at(rank_), group_->ranks.at(peer)};
      pair = std::make_shared<GroupState>(group_->name, std::move(ranks), 0);
    }
  }
  auto record = std::make_shared<Pending>();
  record->group = pair;
  record->call = call;
  record->message = ++group_->messages;
  record->line = line();
  record->timeout_s = group_->timeout_s.load();
  records_->add(record);
  return record;
}

void Direct::follow(const PendingPtr& record, const std::function<bool(const Abort&)>& wait) {
  record->began_s = monotonic_s();
  records_->begin(record);
  std::string trouble;
  try {
    if (wait(*abort_)) {
      record->launched_s.store(monotonic_s());
      record->done_s.store(monotonic_s());
      records_->end(record);
      return;
    }
  } catch (py::error_already_set&) {  // Ctrl-C, or another handler of a signal
    records_->end(record);
    throw;
  } catch (const std::exception& error) {
    trouble = error.what();
  }
  py::gil_scoped_acquire gil;
  report("message_failed", record, trouble);
}

c10::intrusive_ptr<c10::ivalue::Future> finished_future(std::vector<at::Tensor> tensors) {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  future->markCompleted(c10::IValue(std::move(tensors)));
  return future;
}

WorkPtr Direct::run(const Request& request, const Begin& begin) {
  py::gil_scoped_acquire gil;
  std::unique_lock<std::recursive_mutex> order(group_->order, std::try_to_lock);
  if (!order || !ready_for(request)) {
    return nullptr;
  }
  const Native& api = device_api();
  auto device = static_cast<c10::DeviceIndex>(group_->device.load());
  std::shared_ptr<const Call> call = known(request);
  Memory source;
  Memory target;
  if (request.operand != nullptr) {
    api.flush(device);
    source = request.reads ? api.memory(*request.operand, false) : source;
    target = request.writes ? api.memory(*request.result, true) : target;
    if ((request.reads && !source.owner) || (request.writes && !target.owner)) {
      return nullptr;
    }
    api.add_device_time(device, call->device_time_ps);
  } else {
    api.synchronize(device);
  }
  auto record = std::make_shared<Pending>();
  record->group = group_;
  record->call = call;
  record->seq = ++group_->seq;
  record->line = line();
  record->timeout_s = group_->timeout_s.load();
  records_->begin(record);
  Outcome outcome = Outcome::kEnded;
  std::string trouble;
  try {
    py::gil_scoped_release no_gil;
    outcome = perform(*record, [&](End& end) {
      return begin(*gloo_, view_of(source, request.operand), view_of(target, request.result), end);
    });
    if (outcome == Outcome::kDone) {
      records_->end(record);
      std::vector<at::Tensor> tensors;
      if (request.result != nullptr) {
        tensors.push_back(*request.result);
      }
      return c10::make_intrusive<FinishedWork>(shared_from_this(), std::move(tensors));
    }
  } catch (py::error_already_set&) {  // Ctrl-C, or another handler of a signal
    owner_().attr("interrupted")(record);
    throw;
  } catch (const std::exception& error) {
    trouble = error.what();
  }
  source.owner.release();  // a thread of gloo's that is stuck may still use them: kept for ever
  target.owner.release();
  report(!trouble.empty() ? "failed" : outcome == Outcome::kDiffers ? "differs" : "ended", record,
         !trouble.empty() ? trouble : other_);
}

bool wait_for(const std::vector<WorkPtr>& works, const Abort& abort) {
  for (const auto& work : works) {
    for (bool over = false; !over;) {
      try {
        over = work->wait(kSignalPeriod);
      } catch (const std::exception&) {
        if (work->isCompleted()) {
          over = work->wait();  // its own mistake, unless it ended just now
        } else if (abort.set.load(std::memory_order_relaxed)) {
          return false;
        } else {
          check_signals();
        }
      }
    }
  }
  return true;
}

bool await(Mailbox& box, uint64_t number, const Abort& abort) {
  while (!box.await(number, kSignalPeriod)) {
    if (abort.set.load(std::memory_order_relaxed)) {
      return false;
    }
    check_signals();
  }
  return true;
}

py::str readable(std::string_view text) {
  PyObject* decoded = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "ignore");
  if (decoded == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::str>(decoded);
}

void bind_direct(py::module_& m) {
  py::class_<Count, std::shared_ptr<Count>>(m, "Count", "A number that compiled code looks at.")
      .def(py::init<>())
      .def_property("value", [](const Count& self) { return self.value.load(); },
                    [](Count& self, size_t value) { self.value.store(value); });
  py::class_<Direct, std::shared_ptr<Direct>>(m, "Direct", "The short way of synchronous collectives.")
      .def(py::init<std::shared_ptr<GroupState>, std::shared_ptr<Records>, std::shared_ptr<Abort>,
                    std::shared_ptr<Count>, py::object, int, bool>(),
           py::arg("group"), py::arg("records"), py::arg("abort"), py::arg("in_flight"),
           py::arg("owner"), py::arg("rank"), py::arg("in_place"))
      .def("connect", &Direct::connect, py::arg("gloo"), py::arg("mailbox"),
           "The connections are made: it can be used.");
}

}  // namespace torchtpu::distributed
