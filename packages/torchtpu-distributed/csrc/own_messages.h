// SPDX-License-Identifier: Apache-2.0
// Messages of a rank to itself. Gloo has no connection from a rank to itself, but a script that
// sends to a neighbour is its own neighbour in a group of one rank.
#pragma once

#include "operation.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <unordered_map>

namespace torchtpu::distributed {

// One end of such a message. It is waited for as gloo's works are: `abort` ends a wait, which can
// be repeated; where a timeout ends it, it throws. A message that does not fit is the caller's own
// mistake, which no other rank need know of: a ValueError.
class OwnMessageWork : public c10d::Work {
 public:
  OwnMessageWork(int rank, at::Tensor bytes) : rank_(rank), bytes_(std::move(bytes)) {}

  // The message is here, and is copied to where it is received.
  void deliver(const std::string& message);
  void finish();

  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;
  int sourceRank() const override { return rank_; }
  std::vector<at::Tensor> result() override { return {bytes_}; }

 private:
  const int rank_;
  const at::Tensor bytes_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  bool interrupted_ = false;
  std::optional<size_t> refused_;  // the size of a message that did not fit
};

// Those of one group: of a tag in the order in which they were sent. A message is copied when it
// is sent, so a send is over at once. Tensors are flat CPU bytes.
class OwnMessages : public std::enable_shared_from_this<OwnMessages> {
 public:
  WorkPtr send(int rank, const at::Tensor& bytes, int tag);
  WorkPtr receive(int rank, const at::Tensor& bytes, int tag);
  // From this rank if it has sent one or is alone in its group, else `by_gloo` from the others.
  // While that is under way a message to this rank with the tag is refused (ValueError): gloo's
  // receive cannot be taken back, and which of the two comes first would be chance.
  WorkPtr receive_any(int rank, const at::Tensor& bytes, int tag, bool is_alone,
                      const std::function<WorkPtr()>& by_gloo);

 private:
  WorkPtr receive_locked(int rank, const at::Tensor& bytes, int tag);

  std::mutex mutex_;
  std::unordered_map<int, std::deque<std::string>> sent_;
  std::unordered_map<int, std::deque<c10::intrusive_ptr<OwnMessageWork>>> wanted_;
  std::multiset<int> open_;  // tags of receives from any rank that are gloo's
};

}  // namespace torchtpu::distributed
