// SPDX-License-Identifier: Apache-2.0
#include "flush_log.h"

#include "bridge.h"

#include <mutex>

namespace torchtpu {
namespace {

constexpr size_t kKept = 256;

struct Log {
  std::mutex mutex;
  std::vector<FlushRecord> ring;
  size_t next = 0;
};

Log& the_log() {
  static auto* log = new Log();
  return *log;
}

std::atomic<bool> logging{false};

}  // namespace

const char* name_of(FlushReason reason) {
  static constexpr const char* names[] = {
      "each op", "host read", "synchronize", "event", "stream", "optimizer step", "compiled graph", "loop",
      "op limit", "memory limit", "backward pass", "recomputation", "mode change", "user"};
  static_assert(std::size(names) == static_cast<size_t>(FlushReason::kCount));
  return names[static_cast<size_t>(reason)];
}

const char* name_of(Outcome outcome) {
  static constexpr const char* names[] = {"one program", "op by op", "in pieces"};
  static_assert(std::size(names) == static_cast<size_t>(Outcome::kCount));
  return names[static_cast<size_t>(outcome)];
}

FlushCounters& flush_counters() {
  static auto* counters = new FlushCounters();
  return *counters;
}

void note_flush(const FlushRecord& record) {
  FlushCounters& counters = flush_counters();
  counters.by_reason[static_cast<size_t>(record.reason)].fetch_add(1);
  uint32_t fused = record.outcome == Outcome::kProgram ? record.ops : record.in_pieces;
  counters.fused_ops.fetch_add(fused);
  counters.replayed_ops.fetch_add(record.ops - fused);
  {
    std::lock_guard<std::mutex> guard(the_log().mutex);
    auto& ring = the_log().ring;
    if (ring.size() < kKept) {
      ring.push_back(record);
    } else {
      ring[the_log().next] = record;
    }
    the_log().next = (the_log().next + 1) % kKept;
  }
  if (logging.load(std::memory_order_relaxed)) {
    bridge("log_flush")(name_of(record.reason), name_of(record.outcome), record.ops,
                        record.compile_requested, record.line.describe());
  }
}

std::vector<FlushRecord> last_flushes() {
  std::lock_guard<std::mutex> guard(the_log().mutex);
  const auto& ring = the_log().ring;
  std::vector<FlushRecord> records;
  for (size_t i = 0; i < ring.size(); ++i) {
    records.push_back(ring[ring.size() < kKept ? i : (the_log().next + i) % kKept]);
  }
  return records;
}

void log_flushes(bool on) { logging.store(on); }

}  // namespace torchtpu
