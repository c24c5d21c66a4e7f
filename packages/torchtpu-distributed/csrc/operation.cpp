// SPDX-License-Identifier: Apache-2.0
#include "operation.h"

#include "device_api.h"
#include "threads.h"
#include "work.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/Exceptions.h>

#include <algorithm>

namespace torchtpu::distributed {

Span::Span(const at::Tensor& tensor)
    : storage(tensor.storage().unsafeGetStorageImpl()), last(tensor.storage().nbytes()) {
  if (tensor.is_contiguous()) {
    first = static_cast<size_t>(tensor.storage_offset()) * tensor.itemsize();
    last = first + tensor.nbytes();
  }
}

Written::Written(const void* storage_in, c10::intrusive_ptr<Owner> memory)
    : storage(storage_in), owner(std::move(memory)) {
  device_api().set_written(*owner, true);
}

Written::~Written() { device_api().set_written(*owner, false); }

Tensors Results::of_future() const {
  at::NoGradGuard no_grad;
  return stacked ? Tensors{at::stack(tensors)} : tensors;
}

WrittenPtr written_of(const std::vector<WrittenPtr>& all, const void* storage) {
  auto it = std::find_if(all.begin(), all.end(), [&](const WrittenPtr& each) { return each->storage == storage; });
  return it == all.end() ? WrittenPtr() : *it;
}

Operation::Operation(PendingPtr record, std::vector<Memory> memory, std::vector<WrittenPtr> written,
                     std::vector<Span> spans, Results results, Start start, Explain explain,
                     std::shared_ptr<Records> records, std::shared_ptr<Operations> all)
    : record_(std::move(record)),
      memory_(std::move(memory)),
      written_(std::move(written)),
      spans_(std::move(spans)),
      results_(std::move(results)),
      start_(std::move(start)),
      explain_(std::move(explain)),
      records_(std::move(records)),
      all_(std::move(all)) {}

bool Operation::uses(const void* storage) const {
  return std::any_of(spans_.begin(), spans_.end(), [&](const Span& each) { return each.storage == storage; });
}

bool Operation::uses(const Span& span) const {
  return std::any_of(spans_.begin(), spans_.end(), [&](const Span& each) { return each.overlaps(span); });
}

WrittenPtr Operation::written(const void* storage) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return written_of(written_, storage);
}

bool Operation::uses(uintptr_t first, size_t nbytes) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(memory_.begin(), memory_.end(), [&](const Memory& memory) {
    auto address = reinterpret_cast<uintptr_t>(memory.address);
    return address >= first && address < first + nbytes;
  });
}

void Operation::begin(c10d::Backend& gloo) {
  std::vector<WorkPtr> works;
  try {
    works = start_(gloo, end_);
  } catch (const std::exception& error) {
    fail_behind("failed", error.what());
    return;
  }
  record_->launched_s.store(monotonic_s());
  left_.store(works.size());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    works_ = works;
    auto called = State::kCalled;
    state_.compare_exchange_strong(called, State::kBegun);
  }
  for (const WorkPtr& work : works) {
    work->getFuture()->addCallback([self = shared_from_this()](c10::ivalue::Future& of) { self->arrived(of); });
  }
}

void Operation::arrived(c10::ivalue::Future& work) {
  if (work.hasError()) {
    fail_behind("failed", work.tryRetrieveErrorMessage());
  } else if (left_.fetch_sub(1) == 1) {
    finish();
  }
}

void Operation::finish() {
  try {
    if (end_) {
      end_();
    }
  } catch (const std::exception& error) {
    fail_behind("failed", error.what());
    return;
  }
  record_->done_s.store(monotonic_s());
  records_->end(record_);
  all_->finished(*this);
}

void Operation::close(State how, std::exception_ptr error) {
  if (closed_.exchange(true)) {
    return;
  }
  std::vector<Memory> memory;
  std::vector<WrittenPtr> written;
  std::vector<WorkPtr> works;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    memory.swap(memory_);
    written.swap(written_);
    works.swap(works_);
    error_ = std::move(error);
  }
  if (how == State::kFailed) {  // a thread of gloo's that is stuck may still use it
    for (Memory& each : memory) {
      each.owner.release();
    }
  }
  memory.clear();  // before anybody sees the end, so that the results can be written again
  written.clear();
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    state_.store(how);
    future = future_;
  }
  all_->remove(*this);
  if (future) {
    run_behind([self = shared_from_this(), future] { self->settle(*future); });
  }
}

void Operation::settle(c10::ivalue::Future& future) const {
  if (is_done()) {
    future.markCompleted(c10::IValue(results_.of_future()));
  } else {
    future.setErrorIfNeeded(error_);
  }
}

bool Operation::await(const Abort& abort) {
  std::vector<WorkPtr> works;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    works = works_;
  }
  for (const WorkPtr& work : works) {
    while (!is_over() && !work->isCompleted()) {
      try {
        work->wait(kSignalPeriod);
      } catch (const std::exception&) {
        if (abort.set.load(std::memory_order_relaxed)) {
          return false;
        }
        check_signals();
      }
    }
  }
  return poll(abort, [this] { return is_over(); });
}

void Operation::rethrow() const {
  if (state_.load() != State::kFailed) {
    return;
  }
  try {
    std::rethrow_exception(error_);
  } catch (python_error& error) {
    py::gil_scoped_acquire gil;
    error.restore();
    throw py::error_already_set();
  }
}

void Operation::fail_behind(const char* how, std::string said) {
  run_behind([self = shared_from_this(), how, said = std::move(said)] {
    if (Py_IsInitialized() != 0 && !self->is_over()) {
      py::gil_scoped_acquire gil;
      self->fail(self->explain_(how, self->record_, said));
    }
  });
}

void Operation::fail(const py::object& error) {
  close(State::kFailed, as_exception(error));
  records_->end(record_);  // of one that was abandoned nobody else knows
}

c10::intrusive_ptr<c10::ivalue::Future> Operation::future() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!future_) {
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    if (is_over()) {
      settle(*future_);
    }
  }
  return future_;
}

void Operations::add(const OperationPtr& operation) {
  std::lock_guard<std::mutex> lock(mutex_);
  list_.push_back({operation});
  count_.store(list_.size());
}

WrittenPtr Operations::written(const at::Tensor& tensor) const {
  if (idle()) {
    return {};
  }
  const void* storage = Span(tensor).storage;
  std::vector<OperationPtr> operations = all();
  for (auto it = operations.rbegin(); it != operations.rend(); ++it) {
    if (WrittenPtr written = (*it)->written(storage)) {
      return written;
    }
  }
  return {};
}

void Operations::finished(const Operation& operation) {
  std::unique_lock<std::mutex> lock(mutex_);
  for (Entry& entry : list_) {
    entry.finished = entry.finished || entry.operation.get() == &operation;
  }
  end_in_order(lock);
}

void Operations::remove(const Operation& operation) {
  OperationPtr removed;  // freed without the lock
  std::unique_lock<std::mutex> lock(mutex_);
  auto it = std::find_if(list_.begin(), list_.end(),
                         [&](const Entry& held) { return held.operation.get() == &operation; });
  if (it != list_.end()) {
    removed = std::move(it->operation);
    list_.erase(it);
    count_.store(list_.size());
    end_in_order(lock);
  }
}

// One thread at a time: others leave what they bring to it.
void Operations::end_in_order(std::unique_lock<std::mutex>& lock) {
  if (ending_) {
    return;
  }
  ending_ = true;
  while (OperationPtr next = next_to_end()) {
    lock.unlock();
    next->succeed();
    next.reset();
    lock.lock();
  }
  ending_ = false;
}

OperationPtr Operations::next_to_end() {
  std::vector<const GroupState*> held_up;
  for (Entry& entry : list_) {
    const GroupState* group = entry.operation->record()->group.get();
    if (entry.ending || std::find(held_up.begin(), held_up.end(), group) != held_up.end()) {
      continue;
    }
    if (entry.finished) {
      entry.ending = true;
      return entry.operation;
    }
    held_up.push_back(group);
  }
  return nullptr;
}

bool Operations::idle_in(const GroupState& group) const {
  if (idle()) {
    return true;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  return std::none_of(list_.begin(), list_.end(),
                      [&](const Entry& entry) { return entry.operation->record()->group.get() == &group; });
}

std::vector<OperationPtr> Operations::all() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<OperationPtr> all;
  for (const Entry& entry : list_) {
    all.push_back(entry.operation);
  }
  return all;
}

void Operations::wait_for(const std::function<bool(const Operation&)>& matches, const Abort& abort) const {
  py::gil_scoped_release no_gil;
  for (const OperationPtr& operation : all()) {
    if (matches(*operation) && !operation->await(abort)) {
      return;
    }
  }
}

}  // namespace torchtpu::distributed
