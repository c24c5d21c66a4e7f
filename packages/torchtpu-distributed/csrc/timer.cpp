// SPDX-License-Identifier: Apache-2.0
// The clock of DistributedDataParallel's statistics for tpu models. It reads the host's
// time, when forward, backward and communication were called; the device runs behind.
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

namespace torchtpu::distributed {
namespace {

class HostTimer : public c10d::Timer {
 public:
  explicit HostTimer(c10::Device /*device*/) {}

  std::optional<int64_t> measureDifference(Event start, Event end) override {
    int64_t began = getTimeRef(start);
    int64_t ended = getTimeRef(end);
    if (began == c10d::kUnsetTime || ended < began) {
      return std::nullopt;
    }
    return ended - began;
  }
};

}  // namespace
}  // namespace torchtpu::distributed

namespace c10d {
using torchtpu::distributed::HostTimer;
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kPrivateUse1, HostTimer);
}  // namespace c10d
