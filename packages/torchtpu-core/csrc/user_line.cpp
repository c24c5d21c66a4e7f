// SPDX-License-Identifier: Apache-2.0
#include "user_line.h"

#include "bridge.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/function.h>

#include <array>
#include <map>
#include <unordered_map>

namespace torchtpu {
namespace {

// Code object -> is it the user's? Holds a reference to each key. Guarded by the GIL.
bool is_user_code(PyCodeObject* code) {
  static auto* known = new std::unordered_map<PyCodeObject*, bool>();
  auto it = known->find(code);
  if (it != known->end()) {
    return it->second;
  }
  bool user = bridge("is_user_file")(py::reinterpret_borrow<py::object>(code->co_filename)).cast<bool>();
  Py_INCREF(code);
  known->emplace(code, user);
  return user;
}

UserLine innermost_user_frame() {
  UserLine line;
  PyThreadState* thread = PyGILState_GetThisThreadState();
  PyFrameObject* frame = thread == nullptr ? nullptr : PyThreadState_GetFrame(thread);
  while (frame != nullptr) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    bool user = is_user_code(code);
    Py_DECREF(code);  // the cache keeps it
    if (user) {
      line = {code, PyFrame_GetLasti(frame)};
      Py_DECREF(frame);
      return line;
    }
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  return line;
}

// Lines of recent forward ops by autograd sequence number. Numbers are per thread,
// and backward runs elsewhere; the last writer of a number wins.
struct Forward {
  uint64_t sequence = ~0ull;
  UserLine line;
};
constexpr size_t kForwardLines = 1 << 14;

std::array<Forward, kForwardLines>& forward_lines() {
  static auto* lines = new std::array<Forward, kForwardLines>();
  return *lines;
}

}  // namespace

UserLine current_user_line() {
  if (auto node = torch::autograd::get_current_node()) {
    uint64_t sequence = node->sequence_nr();
    const Forward& entry = forward_lines()[sequence % kForwardLines];
    if (entry.sequence == sequence) {
      return entry.line;
    }
  }
  UserLine line = innermost_user_frame();
  uint64_t next = at::sequence_number::peek();
  if (line.code != nullptr && next > 0) {
    Forward& entry = forward_lines()[(next - 1) % kForwardLines];
    if (entry.sequence != next - 1) {
      entry = {next - 1, line};
    }
  }
  return line;
}

const std::string& current_line_text() {
  static auto* texts = new std::map<std::pair<PyCodeObject*, int>, std::string>();
  UserLine line = current_user_line();
  auto [it, added] = texts->try_emplace({line.code, line.instruction});
  if (added) {
    it->second = line.describe();
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
