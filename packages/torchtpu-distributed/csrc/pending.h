// SPDX-License-Identifier: Apache-2.0
// The record of one collective, from its call to its completion, and the lists of them.
//
// Texts that are the same for every run of a collective are made once (Call), so
// that a record costs one allocation. Python sees records as objects with attributes.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace torchtpu::distributed {

namespace py = pybind11;

// Seconds of the monotonic clock, as Python's time.monotonic().
double monotonic_s();

constexpr double kNever = -1;

// A group as its records name it, and its order of collectives.
struct GroupState {
  GroupState(std::string name_in, std::vector<int> ranks_in, double timeout_s_in)
      : name(std::move(name_in)), ranks(std::move(ranks_in)), timeout_s(timeout_s_in) {}

  const std::string name;
  const std::vector<int> ranks;
  std::atomic<double> timeout_s;     // that a collective may take
  std::atomic<uint64_t> seq{0};      // of the last collective
  std::atomic<uint64_t> messages{0};  // sent and received so far
  std::atomic<int> device{-1};       // the one this rank brings to it
  std::recursive_mutex order;        // held from a collective's number to its launch
};

// What ranks must agree on, worded by Python, and what the flight recorder shows of it.
class Call {
 public:
  // Operands are (dtype, shape) pairs.
  Call(std::string what, std::string kind, py::object inputs, py::object outputs,
       int64_t device_time_ps);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call();

  const std::string what;
  const std::string kind;
  const int64_t device_time_ps;  // simulated time of a run
  std::string digest;            // of `what`
  std::string said;              // digest and the beginning of `what`, a line each: see first_calls.py
  py::object inputs;
  py::object outputs;
};

struct Pending {
  std::shared_ptr<const GroupState> group;
  std::shared_ptr<const Call> call;
  uint64_t seq = 0;      // in the group, from 1; 0 for one that is not numbered
  // Number of a message among those of the group; 0 for a collective.
  uint64_t message = 0;
  std::string line;      // the user's
  std::string pieces;    // that it exchanges, see pieces.h; empty if every rank knows their sizes
  double timeout_s = 0;
  double began_s = monotonic_s();
  std::atomic<double> launched_s{kNever};
  std::atomic<double> done_s{kNever};
  std::string trouble;  // what the transport said when it failed, and when that was
  double trouble_s = 0;
  int64_t record_id = -1;

  // How messages name it: the operation, its number, the group and the user's line.
  std::string name() const;
};
using PendingPtr = std::shared_ptr<Pending>;

// The last records of a process and those that are under way. Any thread may call it.
class Records {
 public:
  explicit Records(size_t entries) : entries_(entries) {}

  // Keeps a record in the ring and gives it its number, once.
  void add(const PendingPtr& record);
  // The same, and it is under way from now on.
  void begin(const PendingPtr& record);
  // The same, but nobody waits for it yet.
  void come(const PendingPtr& record);
  // It is not under way any more.
  void end(const PendingPtr& record);
  bool idle() const { return count_.load() == 0; }

  std::vector<PendingPtr> last() const;
  std::vector<PendingPtr> under_way() const;  // oldest first
  // By name of a group, the last numbered record that was begun.
  std::map<std::string, PendingPtr> positions() const;

 private:
  // What falls out of the ring, to be freed without the lock.
  PendingPtr add_locked(const PendingPtr& record);
  // The record it replaces as the last of its group, likewise.
  PendingPtr reach_locked(const PendingPtr& record);

  mutable std::mutex mutex_;
  size_t entries_;
  int64_t next_id_ = 0;
  std::deque<PendingPtr> ring_;
  std::vector<PendingPtr> under_way_;
  std::atomic<size_t> count_{0};
  std::map<std::shared_ptr<const GroupState>, PendingPtr> positions_;
};

void bind_pending(py::module_& m);
void bind_sigterm(py::module_& m);

}  // namespace torchtpu::distributed
