// SPDX-License-Identifier: Apache-2.0
#include "restless.h"

#include "allocator.h"
#include "copies.h"
#include "device.h"
#include "mixed.h"
#include "mode.h"
#include "trace.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

namespace torchtpu {
namespace {

// A script's first steps differ, and so do the lists that a line passes in one step. But a call with
// the same sizes as before needs a new program only if its tensors lie otherwise.
constexpr uint32_t kManyStreams = 8;
constexpr uint32_t kManyPrograms = 16;
constexpr size_t kMostPlaces = 1 << 12;  // remembered; then all are forgotten

struct Place {
  uint64_t stream = 0;   // the last in which a program was missing
  uint32_t streams = 0;  // in how many one was
  std::unordered_map<int64_t, uint32_t> programs;  // by signature
  bool restless = false;
};

struct Places {
  std::mutex mutex;
  std::unordered_map<uint64_t, Place> table;  // by op and line
  std::atomic<bool> any_restless{false};
};

Places& places() {
  static auto* the_places = new Places();
  return *the_places;
}

uint64_t key_of(const OpInfo& op, const UserLine& line) {
  uint64_t key = mixed(static_cast<uint64_t>(op.uid), reinterpret_cast<uint64_t>(line.code));
  return mixed(key, static_cast<uint64_t>(line.instruction));
}

bool is_restless(const OpInfo& op) {
  if (!places().any_restless.load(std::memory_order_relaxed)) {
    return false;
  }
  uint64_t key = key_of(op, current_user_line());
  std::lock_guard<std::mutex> guard(places().mutex);
  auto it = places().table.find(key);
  return it != places().table.end() && it->second.restless;
}

// Whether the host can read a tensor without a stop: it was there before the present stream.
bool is_there(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().type() != kTpu || tensor.is_conj() || tensor.is_neg()) {
    return false;
  }
  ValuePtr value = slot_of(tensor)->get();
  if (!value || value->trace.load() != nullptr || value->array.load() == nullptr || value->written.load() != 0) {
    return false;
  }
  const Journal& journal = device_trace(value->device).journal;
  return value->epoch != journal.epoch() || (value->place & kFromOutside) != 0;
}

// Host memory of several tensors, given back with the GIL.
class HostViews {
 public:
  HostViews() = default;
  HostViews(const HostViews&) = delete;
  HostViews& operator=(const HostViews&) = delete;
  ~HostViews() {
    py::gil_scoped_acquire gil;
    views_ = c10::List<at::Tensor>();
    keep_alive_.clear();
  }

  void add(const at::Tensor& tensor) {
    keep_alive_.emplace_back();
    views_.push_back(host_view(tensor, keep_alive_.back()));
    bytes_ += static_cast<int64_t>(tensor.nbytes());
  }
  const c10::List<at::Tensor>& views() const { return views_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::vector<py::object> keep_alive_;
  c10::List<at::Tensor> views_;
  int64_t bytes_ = 0;
};

void add_time_of_moving(c10::DeviceIndex device, int64_t bytes) {
  py::gil_scoped_acquire gil;
  auto time_ps = bridge("time_of_moving_ps")(bytes).cast<int64_t>();
  if (time_ps > 0) {
    add_device_time(device, time_ps);
  }
}

bool join_on_host(const OpInfo& op, torch::jit::Stack* stack) {
  auto args = torch::jit::last(*stack, op.args.size());
  auto list = args[0].toTensorList();
  c10::DeviceIndex device = -1;
  for (const at::Tensor& tensor : list) {
    if (!is_there(tensor) || (device >= 0 && tensor.device().index() != device)) {
      return false;
    }
    device = tensor.device().index();
  }
  if (device < 0) {
    return false;
  }
  HostViews host;
  for (const at::Tensor& tensor : list) {
    host.add(tensor);
  }
  torch::jit::Stack on_host{host.views()};
  on_host.insert(on_host.end(), args.begin() + 1, args.end());
  op.handle->callBoxed(on_host);
  at::Tensor joined = on_host[0].toTensor().to(c10::Device(kTpu, device));
  add_time_of_moving(device, 2 * host.bytes());
  torch::jit::drop(*stack, op.args.size());  // they word the error if anything fails
  stack->emplace_back(std::move(joined));
  return true;
}

// Whether lists hold tensors of more than one device. A number on the host may stand in one.
bool on_several_devices(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  std::optional<c10::Device> first;
  for (size_t i = 0; i < args.size(); ++i) {
    if (!args[i].isTensorList()) {
      continue;
    }
    for (const c10::IValue& item : args[i].toListRef()) {
      const at::Tensor& tensor = item.toTensor();
      if (!tensor.defined()) {
        continue;
      }
      bool number = tensor.device().is_cpu() && tensor.dim() == 0 && !op.args[i].written;
      if (number) {
        continue;
      }
      if (tensor.device() != first.value_or(tensor.device())) {
        return true;
      }
      first = tensor.device();
    }
  }
  return false;
}

}  // namespace

void note_program_of_list(const Signature& signature, const UserLine& line, uint64_t stream) {
  const OpInfo& op = *signature.op;
  if (!op.joins && !op.in_parts) {
    return;
  }
  std::lock_guard<std::mutex> guard(places().mutex);
  auto& table = places().table;
  if (table.size() > kMostPlaces) {
    table.clear();
  }
  Place& place = table[key_of(op, line)];
  place.streams += place.stream != stream ? 1 : 0;
  place.stream = stream;
  if (place.streams >= kManyStreams || ++place.programs[signature.id] >= kManyPrograms) {
    place.restless = true;
    place.programs.clear();
    places().any_restless.store(true);
  }
}

void forget_programs_of_lists() {
  std::lock_guard<std::mutex> guard(places().mutex);
  places().table.clear();
  places().any_restless.store(false);
}

bool take_list_apart(const OpInfo& op, torch::jit::Stack* stack) {
  bool apart = op.in_parts && on_several_devices(op, torch::jit::last(*stack, op.args.size()));
  if (!apart && ((!op.joins && !op.in_parts) || !is_restless(op))) {
    return false;
  }
  if (op.joins) {
    return join_on_host(op, stack);
  }
  op.handle->callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, *stack);
  return true;
}

}  // namespace torchtpu
