// SPDX-License-Identifier: Apache-2.0
#include "threads.h"

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace torchtpu::distributed {
namespace {

thread_local bool behind = false;

class Threads {
 public:
  void run(std::function<void()> task) {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
    if (tasks_.size() <= idle_) {
      there_.notify_one();
    } else {
      std::thread([this] { work(); }).detach();
    }
  }

 private:
  void work() {
    behind = true;
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      ++idle_;
      there_.wait(lock, [this] { return !tasks_.empty(); });
      --idle_;
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      task = nullptr;  // with what it has worked on
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable there_;
  std::deque<std::function<void()>> tasks_;
  size_t idle_ = 0;  // threads that wait, those of tasks that are there already included
};

}  // namespace

void run_behind(std::function<void()> task) {
  static auto* threads = new Threads();  // never freed: its threads are never joined
  threads->run(std::move(task));
}

bool is_behind() { return behind; }

}  // namespace torchtpu::distributed
