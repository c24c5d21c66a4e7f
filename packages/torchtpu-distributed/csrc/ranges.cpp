// SPDX-License-Identifier: Apache-2.0
#include "ranges.h"

#include <ATen/record_function.h>

#include <array>
#include <optional>
#include <string_view>
#include <vector>

namespace torchtpu::distributed {
namespace {

using Name = std::shared_ptr<const std::string>;

// The ranges in which FSDP2 calls its collectives; the name of the module follows.
constexpr std::array<std::string_view, 2> kRanges{"FSDP::all_gather", "FSDP::post_backward_reduce"};
// What wraps a module on one rank may not on another, and adds to the names of those inside.
constexpr std::array<std::string_view, 2> kWrappers{"_orig_mod", "_checkpoint_wrapped_module"};

// From the outermost to the innermost range of this thread; those that are over have expired.
thread_local std::vector<std::weak_ptr<const std::string>> open_ranges;

struct Range : at::ObserverContext {
  explicit Range(Name name_in) : name(std::move(name_in)) {}
  Name name;
};

bool is_counted(std::string_view name) {
  for (std::string_view range : kRanges) {
    if (name.starts_with(range) && (name.size() == range.size() || name[range.size()] == ' ')) {
      return true;
    }
  }
  return false;
}

std::string without_wrappers(std::string name) {
  for (std::string_view wrapper : kWrappers) {
    for (size_t at = name.find(wrapper); at != std::string::npos; at = name.find(wrapper, at)) {
      bool dotted_before = at > 0 && name[at - 1] == '.';
      bool dotted_after = at + wrapper.size() < name.size() && name[at + wrapper.size()] == '.';
      size_t first = at - (dotted_before ? 1 : 0);
      name.erase(first, wrapper.size() + (dotted_before || dotted_after ? 1 : 0));
      at = first;
    }
  }
  return name;
}

void drop_ended() {
  while (!open_ranges.empty() && open_ranges.back().expired()) {
    open_ranges.pop_back();
  }
}

std::unique_ptr<at::ObserverContext> note_begin(const at::RecordFunction& range) {
  if (!is_counted(range.name())) {
    return nullptr;
  }
  auto name = std::make_shared<const std::string>(without_wrappers(range.name()));
  drop_ended();
  open_ranges.emplace_back(name);
  return std::make_unique<Range>(std::move(name));
}

void note_end(const at::RecordFunction& /*range*/, at::ObserverContext* context) {
  if (context != nullptr) {
    static_cast<Range*>(context)->name.reset();
  }
}

// The GIL is held.
void watch_ranges(bool on) {
  static std::optional<at::CallbackHandle> handle;
  if (on && !handle) {
    handle = at::addGlobalCallback(
        at::RecordFunctionCallback(note_begin, note_end).scopes({at::RecordScope::USER_SCOPE}));
  } else if (!on && handle) {
    at::removeCallback(*handle);
    handle.reset();
  }
}

}  // namespace

Name fsdp_range() {
  drop_ended();
  return open_ranges.empty() ? nullptr : open_ranges.back().lock();
}

void bind_ranges(pybind11::module_& m) {
  m.def("watch_ranges", &watch_ranges, pybind11::arg("on"), "Note FSDP2's ranges from now on, or not any more.");
  m.def("fsdp_range", [] {
    Name name = fsdp_range();
    return name ? *name : std::string();
  }, "The range of a collective of FSDP2's that this thread is in; empty if none.");
}

}  // namespace torchtpu::distributed
