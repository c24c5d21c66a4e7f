// SPDX-License-Identifier: Apache-2.0
#include "lane.h"

#include "threads.h"

namespace torchtpu::distributed {

bool await(Mailbox& box, uint64_t number, const Abort& abort, bool handles_signals) {
  while (!box.await(number, kSignalPeriod)) {
    if (abort.set.load(std::memory_order_relaxed)) {
      return false;
    }
    if (handles_signals) {
      check_signals();
    }
  }
  return true;
}

Lane::~Lane() {
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) {
    py::gil_scoped_release no_gil;  // its threads end now, and may need it for that
    gloo_.reset();
  }
}

void Lane::connect(BackendPtr gloo, std::shared_ptr<Mailbox> mailbox) {
  gloo_ = std::move(gloo);
  mailbox_ = std::move(mailbox);
  connected_.store(true, std::memory_order_release);
}

Lane::Outcome Lane::agree(const Pending& record, Patience patience, std::string& other) {
  if (!mailbox_) {
    return Outcome::kDone;
  }
  if (rank_ == 0) {
    auto post = [&] { return mailbox_->post(record.seq, record.call->said, record.line); };
    if (patience == Patience::kNone) {
      return post() ? Outcome::kDone : Outcome::kNotYet;
    }
    return poll(*abort_, post, patience == Patience::kAwake) ? Outcome::kDone : Outcome::kEnded;
  }
  if (patience == Patience::kNone) {
    if (!mailbox_->has(record.seq)) {
      return Outcome::kNotYet;
    }
  } else if (!await(*mailbox_, record.seq, *abort_, patience == Patience::kAwake)) {
    return Outcome::kEnded;
  }
  std::string_view theirs = mailbox_->text(record.seq);
  bool same = theirs.starts_with(record.call->digest);
  if (!same) {
    other = theirs;
  }
  mailbox_->taken(record.seq);
  return same ? Outcome::kDone : Outcome::kDiffers;
}

void Lane::enter(const OperationPtr& operation) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back(operation);
    length_.store(waiting_.size());
  }
  serve(Patience::kNone);
  call_behind();
}

void Lane::serve(Patience patience, const Operation* last) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!waiting_.empty() && (last == nullptr || !last->has_begun())) {
    if (serving_) {
      if (patience == Patience::kNone) {
        return;
      }
      changed_.wait_for(lock, kSignalPeriod);
      lock.unlock();
      if (abort_->set.load(std::memory_order_relaxed)) {
        return;
      }
      if (patience == Patience::kAwake) {
        check_signals();
      }
      lock.lock();
      continue;
    }
    serving_ = true;
    OperationPtr first = waiting_.front();
    lock.unlock();
    Outcome outcome = Outcome::kNotYet;
    try {
      outcome = begin(*first, patience);
    } catch (...) {
      leave(outcome);
      throw;
    }
    leave(outcome);
    if (outcome == Outcome::kNotYet) {
      return;
    }
    first.reset();  // without the lock
    lock.lock();
  }
}

// Lets another thread serve; what could begin is not the first any more.
void Lane::leave(Outcome outcome) {
  std::lock_guard<std::mutex> lock(mutex_);
  serving_ = false;
  if (outcome != Outcome::kNotYet) {
    waiting_.pop_front();  // whoever leaves has it still
    length_.store(waiting_.size());
  }
  changed_.notify_all();
}

Lane::Outcome Lane::begin(Operation& first, Patience patience) {
  std::string other;
  Outcome outcome = agree(*first.record(), patience, other);
  if (outcome == Outcome::kDone) {
    first.begin(*gloo_);
    begun_behind += patience == Patience::kBehind ? 1 : 0;
  } else if (outcome != Outcome::kNotYet) {
    first.fail_behind(outcome == Outcome::kDiffers ? "differs" : "ended", other);
  }
  return outcome;
}

void Lane::call_behind() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (waiting_.empty() || called_) {
      return;
    }
    called_ = true;
  }
  run_behind([self = shared_from_this()] { self->serve_behind(); });
}

void Lane::serve_behind() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    const Operation* first = nullptr;
    while (!hurried_ && !waiting_.empty() && waiting_.front().get() != first) {
      first = waiting_.front().get();
      changed_.wait_for(lock, std::chrono::duration<double>(grace_s.load()),
                        [&] { return hurried_ || waiting_.empty(); });
    }
    called_ = false;
    hurried_ = false;
  }
  serve(Patience::kBehind);
}

void Lane::hurry() {
  std::lock_guard<std::mutex> lock(mutex_);
  hurried_ = called_;
  changed_.notify_all();
}

}  // namespace torchtpu::distributed
