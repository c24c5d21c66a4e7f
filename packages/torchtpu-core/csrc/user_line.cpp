// SPDX-License-Identifier: Apache-2.0
#include "user_line.h"

#include "bridge.h"
#include "python_frames.h"

#include <ATen/SequenceNumber.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <tuple>
#include <typeinfo>
#include <unordered_map>

namespace torchtpu {
namespace {

// Whether code is the user's. Each thread remembers, so that the GIL is taken at the first sight
// only; the process holds a reference to all code that was ever asked about.
bool is_user_code(PyCodeObject* code) {
  thread_local std::unordered_map<PyCodeObject*, bool> seen;
  if (auto it = seen.find(code); it != seen.end()) {
    return it->second;
  }
  py::gil_scoped_acquire gil;
  static auto* known = new std::unordered_map<PyCodeObject*, bool>();
  auto it = known->find(code);
  if (it == known->end()) {
    auto file = py::reinterpret_borrow<py::object>(code->co_filename);
    it = known->emplace(code, bridge("is_user_file")(file).cast<bool>()).first;
    Py_INCREF(code);
  }
  return seen[code] = it->second;
}

// Lines of recent forward ops by autograd sequence number. Numbers are per thread,
// and backward runs elsewhere; the last writer of a number wins.
class ForwardLines {
 public:
  // The line of a number, or of the next one that is remembered: an op of a tensor subclass may
  // call functions of autograd's, which take numbers, before it computes anything (DTensor's do).
  std::optional<UserLine> find(uint64_t sequence) {
    std::lock_guard<std::mutex> guard(mutex_);
    for (uint64_t number = sequence; number < sequence + kTakenByOne; ++number) {
      const Forward& entry = entries_[number % kEntries];
      if (entry.sequence == number) {
        return entry.line;
      }
    }
    return std::nullopt;
  }

  // Remembers the first line of a number.
  void add(uint64_t sequence, const UserLine& line) {
    std::lock_guard<std::mutex> guard(mutex_);
    Forward& entry = entries_[sequence % kEntries];
    if (entry.sequence != sequence) {
      entry = {sequence, line};
    }
  }

 private:
  struct Forward {
    uint64_t sequence = ~0ull;
    UserLine line;
  };
  static constexpr size_t kEntries = 1 << 14;
  static constexpr uint64_t kTakenByOne = 8;

  std::mutex mutex_;
  std::array<Forward, kEntries> entries_;
};

ForwardLines& forward_lines() {
  static auto* lines = new ForwardLines();
  return *lines;
}

}  // namespace

bool calls_python(torch::autograd::Node& node) {
  if (!node.tensor_pre_hooks().empty() || !node.pre_hooks().empty() || !node.post_hooks().empty()) {
    return true;
  }
  // By name, because the class is in a library that extensions in C++ are not linked with.
  return std::string_view(typeid(node).name()).find("PyNode") != std::string_view::npos;
}

namespace {

struct CallingLine {
  UserLine line;
  bool is_backward = false;  // the line is the forward op's
};

CallingLine calling_line() {
  if (auto node = torch::autograd::get_current_node()) {
    if (calls_python(*node)) {  // where the user's code asks for an op itself, it is named
      if (UserLine line = innermost_frame(is_user_code); line.code != nullptr) {
        return {line};
      }
    }
    if (auto line = forward_lines().find(node->sequence_nr())) {
      return {*line, true};
    }
  }
  UserLine line = innermost_frame(is_user_code);
  uint64_t next = at::sequence_number::peek();
  if (line.code != nullptr && next > 0) {
    forward_lines().add(next - 1, line);
  }
  return {line};
}

// Autograd takes the node with the highest number first, and each thread counts its own. A backward
// pass that is differentiated makes nodes on a thread of the device: were its count not that of the
// forward pass, their order would drift from step to step, and no stream of ops would come again.
void share_sequence_numbers() {
  static std::atomic<uint64_t> newest{0};
  constexpr uint64_t kMostAtOnce = 1 << 16;  // a thread that begins late catches up over several ops
  if (!c10::GradMode::is_enabled()) {
    return;
  }
  uint64_t next = at::sequence_number::peek();
  uint64_t known = newest.load(std::memory_order_relaxed);
  for (uint64_t end = std::min(known, next + kMostAtOnce); next < end; ++next) {
    at::sequence_number::get_and_increment();
  }
  while (next > known && !newest.compare_exchange_weak(known, next, std::memory_order_relaxed)) {
  }
}

}  // namespace

UserLine current_user_line() {
  UserLine line = calling_line().line;
  share_sequence_numbers();
  return line;
}

const std::string& current_line_text() {
  static auto* texts = new std::map<std::tuple<PyCodeObject*, int, bool>, std::string>();
  auto [line, is_backward] = calling_line();
  auto [it, added] = texts->try_emplace({line.code, line.instruction, is_backward});
  if (added) {
    it->second = (is_backward ? "backward of " : "") + line.describe();
  }
  return it->second;
}

std::string UserLine::describe() const {
  if (code == nullptr) {
    return "";
  }
  py::gil_scoped_acquire gil;
  int number = PyCode_Addr2Line(code, instruction);
  auto file = py::reinterpret_borrow<py::str>(code->co_filename).cast<std::string>();
  auto name = py::reinterpret_borrow<py::str>(code->co_name).cast<std::string>();
  return file + ":" + std::to_string(number) + " in " + name;
}

}  // namespace torchtpu
