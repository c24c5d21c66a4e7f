// SPDX-License-Identifier: Apache-2.0
#include "direct.h"

#include "device_api.h"
#include "direct_works.h"
#include "ranges.h"
#include "untraced.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

namespace torchtpu::distributed {
namespace {

// So many different calls are kept: those of pieces may differ every time.
constexpr size_t kKnownCalls = 4096;

Results results_of(const Request& request) { return {request.results.vec(), request.stacked}; }

// The memory, if there is any, of these tensors.
Tensors views_of(const std::vector<Memory>& memory, at::TensorList tensors) {
  c10::InferenceMode normal(false);  // another thread, which is in no inference mode, may write
  Tensors views;
  for (size_t i = 0; i < memory.size(); ++i) {
    auto options = at::TensorOptions().dtype(tensors[i].scalar_type());
    views.push_back(at::from_blob(memory[i].address, {tensors[i].numel()}, options));
  }
  return views;
}

bool share_memory(at::TensorList some, at::TensorList others) {
  for (const at::Tensor& each : some) {
    for (const at::Tensor& other : others) {
      if (each.storage().is_alias_of(other.storage())) {
        return true;
      }
    }
  }
  return false;
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
  for (at::TensorList tensors : {request.operands, request.results}) {
    key.push_back('|');
    for (const at::Tensor& tensor : tensors) {
      append_operand(key, tensor);
    }
  }
  if (auto range = fsdp_range()) {
    key.append(*range);
  }
  return key;
}

}  // namespace

Direct::Direct(std::shared_ptr<GroupState> group, std::shared_ptr<Records> records,
               std::shared_ptr<Abort> abort, std::shared_ptr<Count> in_flight,
               std::shared_ptr<Operations> operations, py::object owner, int rank, bool in_place)
    : rank_(rank),
      in_place_(in_place),
      group_(std::move(group)),
      records_(std::move(records)),
      abort_(std::move(abort)),
      in_flight_(std::move(in_flight)),
      operations_(std::move(operations)),
      lane_(std::make_shared<Lane>(rank, abort_)),
      owner_(py::weakref(owner)) {}

Direct::~Direct() {
  if (Py_IsInitialized() == 0) {
    owner_.release();  // the interpreter is gone, and the object with it
    return;
  }
  py::gil_scoped_acquire gil;
  owner_ = py::object();
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
  if (!lane_->is_connected() || !is_quiet()) {
    return false;
  }
  auto device = static_cast<c10::DeviceIndex>(group_->device.load());
  for (at::TensorList tensors : {request.operands, request.results}) {
    for (const at::Tensor& tensor : tensors) {
      if (tensor.device().index() != device || tensor.numel() == 0) {
        return false;
      }
    }
  }
  bool same = request.in_place || request.operands.data() == request.results.data();
  return device >= 0 && (same || !share_memory(request.operands, request.results));
}

std::shared_ptr<const Call> Direct::known(const Request& request) {
  std::string key = key_of(request);
  auto it = calls_.find(key);
  if (it != calls_.end()) {
    return it->second;
  }
  Untraced untraced;
  auto call =
      owner_().attr("describe")(request.kind, request.op, request.root, request.operands.vec(), request.results.vec())
          .cast<std::shared_ptr<Call>>();
  if (calls_.size() >= kKnownCalls) {
    calls_.clear();
  }
  calls_.emplace(std::move(key), call);
  return call;
}

Direct::Outcome Direct::perform(Pending& record, const Operation::Start& start) {
  Agreement agreement = lane_->agree(record, Lane::Patience::kAwake, other_);
  if (agreement != Agreement::kSame) {
    return agreement == Agreement::kDiffers ? Outcome::kDiffers : Outcome::kEnded;
  }
  End end;
  std::vector<WorkPtr> works = start(lane_->gloo(), end);
  record.launched_s.store(monotonic_s());
  if (!wait_for(works, *abort_)) {
    return Outcome::kEnded;
  }
  if (end) {
    end();
  }
  record.done_s.store(monotonic_s());
  return drain() ? Outcome::kDone : Outcome::kEnded;
}

void Direct::report(const char* how, const PendingPtr& record, const std::string& text) {
  Untraced untraced;
  owner_().attr(how)(record, readable(text));
  throw std::runtime_error(record->name() + ": " + text);
}

std::string Direct::line() const {
  const std::string& known = device_api().user_line();  // none in a thread of autograd's
  return known.empty() ? owner_().attr("stand_in_line")().cast<std::string>() : known;
}

PendingPtr Direct::message(const char* kind, int peer, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(peer < size(), kind, ": the group has no rank ", peer, ", its ranks are 0 to ", size() - 1,
                    ".");
  std::string key = std::string(kind) + std::to_string(peer) + ":";
  append_operand(key, tensor);
  auto& [pair, call] = messages_[key];
  if (!call) {
    Untraced untraced;
    call = owner_().attr("describe_message")(kind, peer, tensor).cast<std::shared_ptr<Call>>();
    if (peer < 0) {
      pair = group_;
    } else {
      std::vector<int> ranks{group_->ranks.at(rank_)};
      if (peer != rank_) {
        ranks.push_back(group_->ranks.at(peer));
      }
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

c10::intrusive_ptr<c10::ivalue::Future> finished_future(std::vector<at::Tensor> tensors) {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  future->markCompleted(c10::IValue(std::move(tensors)));
  return future;
}

bool Direct::prepare(const Request& request, Prepared& prepared) {
  const Native& api = device_api();
  auto device = static_cast<c10::DeviceIndex>(group_->device.load());
  std::shared_ptr<const Call> call = known(request);
  if (request.operands.empty() && request.results.empty()) {
    api.synchronize(device);
  } else if (find_memory(request, prepared)) {
    api.add_device_time(device, call->device_time_ps);
  } else {
    return false;
  }
  prepared.record = std::make_shared<Pending>();
  prepared.record->group = group_;
  prepared.record->call = call;
  prepared.record->line = line();
  prepared.record->pieces = request.pieces;
  prepared.record->timeout_s = request.timeout.count() > 0 ? std::chrono::duration<double>(request.timeout).count()
                                                           : group_->timeout_s.load();
  return true;
}

WorkPtr Direct::run(const Request& request, Begin begin) {
  py::gil_scoped_acquire gil;
  std::unique_lock<std::recursive_mutex> order(group_->order, std::try_to_lock);
  Prepared prepared;
  if (!order || !ready_for(request) || !prepare(request, prepared)) {
    return nullptr;
  }
  if (!request.later && !lane_->is_empty()) {
    py::gil_scoped_release no_gil;
    settle();
  }
  prepared.record->seq = ++group_->seq;
  records_->begin(prepared.record);
  return request.later ? run_later(request, std::move(begin), std::move(prepared))
                       : run_now(request, begin, std::move(prepared));
}

WorkPtr Direct::run_now(const Request& request, const Begin& begin, Prepared prepared) {
  auto& [record, sources, targets, written] = prepared;
  Outcome outcome = Outcome::kEnded;
  std::string trouble;
  try {
    py::gil_scoped_release no_gil;
    outcome = perform(*record, [&, sources = views_of(sources, request.operands),
                                targets = views_of(targets, request.results)](c10d::Backend& gloo, End& end) {
      return begin(gloo, sources, targets, end);
    });
    if (outcome == Outcome::kDone) {
      records_->end(record);
      return c10::make_intrusive<FinishedWork>(shared_from_this(), results_of(request));
    }
  } catch (py::error_already_set&) {  // Ctrl-C, or another handler of a signal
    owner_().attr("interrupted")(record);
    throw;
  } catch (const std::exception& error) {
    trouble = error.what();
  }
  for (std::vector<Memory>* memory : {&sources, &targets}) {
    for (Memory& each : *memory) {
      each.owner.release();  // a thread of gloo's that is stuck may still use it: kept for ever
    }
  }
  report(!trouble.empty() ? "failed" : outcome == Outcome::kDiffers ? "differs" : "ended", record,
         !trouble.empty() ? trouble : other_);
}

WorkPtr Direct::run_later(const Request& request, Begin begin, Prepared prepared) {
  std::vector<Span> spans;
  for (at::TensorList tensors : {request.operands, request.results}) {
    for (const at::Tensor& tensor : tensors) {
      spans.emplace_back(tensor);
    }
  }
  auto start = [begin = std::move(begin), sources = views_of(prepared.sources, request.operands),
                targets = views_of(prepared.targets, request.results)](c10d::Backend& gloo, End& end) {
    return begin(gloo, sources, targets, end);
  };
  std::vector<Memory> memory = std::move(prepared.sources);
  std::move(prepared.targets.begin(), prepared.targets.end(), std::back_inserter(memory));
  auto explain = [self = weak_from_this()](const char* how, const PendingPtr& record, const std::string& said) {
    std::shared_ptr<Direct> direct = self.lock();
    return direct ? direct->explain(how, record, said)
                  : py::handle(PyExc_RuntimeError)(readable(record->name() + ": its process group is gone"));
  };
  auto operation = std::make_shared<Operation>(
      prepared.record, std::move(memory), std::move(prepared.written), std::move(spans), results_of(request),
      std::move(start), std::move(explain), records_, operations_);
  operations_->add(operation);
  py::gil_scoped_release no_gil;
  lane_->enter(operation);
  return c10::make_intrusive<LaterWork>(shared_from_this(), std::move(operation));
}

void Direct::wait(Operation& operation, std::chrono::milliseconds timeout) {
  bool aborted = false;
  bool late = false;
  try {
    if (timeout == kNoTimeout) {
      lane_->serve(Lane::Patience::kAwake, &operation);
      aborted = !operation.await(*abort_);
    } else {
      auto until = std::chrono::steady_clock::now() + timeout;
      aborted = !poll(*abort_, [&] {
        lane_->serve(Lane::Patience::kNone, &operation);
        late = std::chrono::steady_clock::now() > until;
        return operation.is_over() || late;
      });
    }
  } catch (py::error_already_set&) {  // Ctrl-C, or another handler of a signal
    py::gil_scoped_acquire gil;
    owner_().attr("interrupted")(operation.record());
    throw;
  }
  if (aborted) {
    check();
  }
  if (late && !operation.is_over()) {
    throw_not_yet(*operation.record(), timeout);
  }
}

void throw_not_yet(const Pending& record, std::chrono::milliseconds timeout) {
  throw NotYet({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
               c10::str(record.name(), ": not over in the ", timeout.count(),
                        " ms that wait() was given. It goes on: wait again, or give it longer."));
}

py::object Direct::explain(const char* how, const PendingPtr& record, const std::string& said) {
  try {
    report(how, record, said);
  } catch (py::error_already_set& error) {
    return error.value();
  } catch (const std::exception& error) {
    return py::handle(PyExc_RuntimeError)(readable(error.what()));
  }
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

py::str readable(std::string_view text) {
  PyObject* decoded = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "ignore");
  if (decoded == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::str>(decoded);
}

}  // namespace torchtpu::distributed
