// SPDX-License-Identifier: Apache-2.0
// Why traces ended and what became of them: counters, and the last few for
// torch.tpu.explain().
#pragma once

#include "user_line.h"

#include <c10/core/Device.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

namespace torchtpu {

// Why a trace ends. kEachOp is Strict's; all others are boundaries of the script.
enum class FlushReason : int8_t {
  kEachOp, kHostRead, kSynchronize, kEvent, kStream, kOptimizerStep, kCompiledGraph, kLoop,
  kOpLimit, kMemoryLimit, kBackward, kRecomputation, kModeChange, kUser, kCount,
};
const char* name_of(FlushReason reason);

// How the ops of a trace ran.
enum class Outcome : int8_t {
  kProgram,   // as one program
  kOpByOp,    // one by one: the program is unknown or being compiled
  kInPieces,  // some in programs of several, the others one by one: sizes differ
  kCount,
};
const char* name_of(Outcome outcome);

struct FlushRecord {
  FlushReason reason = FlushReason::kUser;
  Outcome outcome = Outcome::kProgram;
  c10::DeviceIndex device = 0;
  uint32_t ops = 0;
  uint32_t in_pieces = 0;  // ops that ran in programs of several, if not all did
  bool compile_requested = false;
  UserLine line;   // of the last op
};

struct FlushCounters {
  std::array<std::atomic<int64_t>, static_cast<size_t>(FlushReason::kCount)> by_reason{};
  std::atomic<int64_t> fused_ops{0};     // in programs of several
  std::atomic<int64_t> replayed_ops{0};  // one by one
};
FlushCounters& flush_counters();

// Counts a flush and keeps it among the last ones; logs it if that is on. The GIL is held.
void note_flush(const FlushRecord& record);
// The last flushes, oldest first.
std::vector<FlushRecord> last_flushes();
// Whether each flush is handed to the Python logger.
void log_flushes(bool on);

}  // namespace torchtpu
