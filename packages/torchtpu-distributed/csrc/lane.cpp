// SPDX-License-Identifier: Apache-2.0
#include "lane.h"

#include "pieces.h"
#include "profiled.h"
#include "threads.h"

namespace torchtpu::distributed {

Agreement compare(Mailbox& box, uint64_t number, const Call& call, const std::string& line, const Abort& abort,
                  bool patient, bool handles_signals, std::string& others) {
  auto post = [&] { return box.post(number, call.said, line); };
  if (!patient && !post()) {
    return Agreement::kNotYet;
  }
  if (patient && !poll(abort, post, handles_signals)) {
    return Agreement::kEnded;
  }
  int rank = box.differing(number, call.digest);
  if (rank >= 0) {
    others = std::to_string(rank) + "\n" + std::string(box.text(rank, number));
  }
  box.taken(number);
  return rank < 0 ? Agreement::kSame : Agreement::kDiffers;
}

Lane::~Lane() {
  if (abort_->set.load()) {
    gloo_.release();  // a thread of its may wait for a lost rank: to destroy it is to join that
    return;
  }
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

Agreement Lane::agree(const Pending& record, Patience patience, std::string& other) {
  if (!mailbox_) {
    return Agreement::kSame;
  }
  if (is_broken()) {
    return Agreement::kEnded;
  }
  std::string line = record.pieces.empty() ? record.line : record.line + "\n" + record.pieces;
  Agreement agreement = compare(*mailbox_, record.seq, *record.call, line, *abort_, patience != Patience::kNone,
                                patience == Patience::kAwake, other);
  if (agreement == Agreement::kSame && !record.pieces.empty() &&
      !pieces_fit(*mailbox_, record.seq, rank_, static_cast<int>(record.group->ranks.size()), record.pieces)) {
    agreement = Agreement::kDiffers;
  }
  if (agreement == Agreement::kDiffers) {
    broken_.store(true);
  }
  return agreement;
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
    Agreement agreement = Agreement::kNotYet;
    try {
      agreement = begin(*first, patience);
    } catch (...) {
      leave(agreement);
      throw;
    }
    leave(agreement);
    if (agreement == Agreement::kNotYet) {
      return;
    }
    first.reset();  // without the lock
    lock.lock();
  }
}

// Lets another thread serve; what could begin is not the first any more.
void Lane::leave(Agreement agreement) {
  std::lock_guard<std::mutex> lock(mutex_);
  serving_ = false;
  if (agreement != Agreement::kNotYet) {
    waiting_.pop_front();  // whoever leaves has it still
    length_.store(waiting_.size());
  }
  changed_.notify_all();
}

Agreement Lane::begin(Operation& first, Patience patience) {
  std::string other;
  Agreement agreement = agree(*first.record(), patience, other);
  if (agreement == Agreement::kSame) {
    Unrecorded unless_profiled;
    first.begin(*gloo_);
    begun_behind += patience == Patience::kBehind ? 1 : 0;
  } else if (agreement != Agreement::kNotYet) {
    first.fail_behind(agreement == Agreement::kDiffers ? "differs" : "ended", other);
  }
  return agreement;
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
