// SPDX-License-Identifier: Apache-2.0
#include "own_messages.h"

#include <cstring>

namespace torchtpu::distributed {

void OwnMessageWork::deliver(const std::string& message) {
  if (message.size() == bytes_.nbytes()) {
    std::memcpy(bytes_.data_ptr(), message.data(), message.size());
  } else {
    refused_ = message.size();
  }
  finish();
}

void OwnMessageWork::finish() {
  std::lock_guard<std::mutex> lock(mutex_);
  over_ = true;
  changed_.notify_all();
}

bool OwnMessageWork::isCompleted() {
  std::lock_guard<std::mutex> lock(mutex_);
  return over_;
}

bool OwnMessageWork::isSuccess() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return over_ && !refused_;
}

bool OwnMessageWork::wait(std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  auto is_ready = [this] { return over_ || interrupted_; };
  if (timeout == kNoTimeout) {
    changed_.wait(lock, is_ready);
  } else {
    TORCH_CHECK(changed_.wait_for(lock, timeout, is_ready), "rank ", rank_,
                " receives a message from itself and has not sent it in time.");
  }
  interrupted_ = false;
  TORCH_CHECK_VALUE(!refused_, "rank ", rank_, " sent itself a message of ", *refused_,
                    " bytes and receives it into a tensor of ", bytes_.nbytes(),
                    " bytes: give both the same shape and dtype.");
  return over_;
}

void OwnMessageWork::abort() {
  std::lock_guard<std::mutex> lock(mutex_);
  interrupted_ = true;
  changed_.notify_all();
}

namespace {

// The first of a tag, if there is one.
template <typename Lines>
auto take_first(Lines& lines, int tag) {
  std::optional<typename Lines::mapped_type::value_type> first;
  auto line = lines.find(tag);
  if (line != lines.end()) {
    first = std::move(line->second.front());
    line->second.pop_front();
    if (line->second.empty()) {
      lines.erase(line);
    }
  }
  return first;
}

}  // namespace

WorkPtr OwnMessages::send(int rank, const at::Tensor& bytes, int tag) {
  auto work = c10::make_intrusive<OwnMessageWork>(rank, bytes);
  std::string message(static_cast<const char*>(bytes.data_ptr()), bytes.nbytes());
  std::lock_guard<std::mutex> lock(mutex_);
  if (auto receive = take_first(wanted_, tag)) {
    (*receive)->deliver(message);
  } else {
    TORCH_CHECK_VALUE(open_.count(tag) == 0, "rank ", rank, " sends itself a message with tag ", tag,
                      " while it receives from any rank with this tag, and that receive sees only what other "
                      "ranks send: send first, or name the source of the receive.");
    sent_[tag].push_back(std::move(message));
  }
  work->finish();
  return work;
}

WorkPtr OwnMessages::receive(int rank, const at::Tensor& bytes, int tag) {
  std::lock_guard<std::mutex> lock(mutex_);
  return receive_locked(rank, bytes, tag);
}

WorkPtr OwnMessages::receive_locked(int rank, const at::Tensor& bytes, int tag) {
  auto work = c10::make_intrusive<OwnMessageWork>(rank, bytes);
  if (auto message = take_first(sent_, tag)) {
    work->deliver(*message);
  } else {
    wanted_[tag].push_back(work);
  }
  return work;
}

namespace {

// A receive from any rank, by gloo, which sees no messages of the rank itself.
class AnySourceWork : public c10d::Work {
 public:
  AnySourceWork(WorkPtr of_gloo, std::function<void()> close)
      : Work(-1, c10d::OpType::RECVANYSOURCE), of_gloo_(std::move(of_gloo)), close_(std::move(close)) {}
  ~AnySourceWork() override { close(); }

  bool isCompleted() override { return of_gloo_->isCompleted(); }
  bool isSuccess() const override { return of_gloo_->isSuccess(); }
  std::exception_ptr exception() const override { return of_gloo_->exception(); }
  int sourceRank() const override { return of_gloo_->sourceRank(); }
  void abort() override { of_gloo_->abort(); }
  bool wait(std::chrono::milliseconds timeout) override {
    bool over = of_gloo_->wait(timeout);
    if (over) {
      close();
    }
    return over;
  }

 private:
  void close() {
    std::call_once(closed_, close_);
  }

  WorkPtr of_gloo_;
  std::function<void()> close_;
  std::once_flag closed_;
};

}  // namespace

WorkPtr OwnMessages::receive_any(int rank, const at::Tensor& bytes, int tag, bool is_alone,
                                 const std::function<WorkPtr()>& by_gloo) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (is_alone || sent_.count(tag) != 0) {
    return receive_locked(rank, bytes, tag);
  }
  WorkPtr work = by_gloo();
  auto entry = open_.insert(tag);
  return c10::make_intrusive<AnySourceWork>(std::move(work), [self = shared_from_this(), entry] {
    std::lock_guard<std::mutex> closing(self->mutex_);
    self->open_.erase(entry);
  });
}

}  // namespace torchtpu::distributed
