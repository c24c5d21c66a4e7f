// SPDX-License-Identifier: Apache-2.0
// The stream of ops between two boundaries, and whether it pays to defer it.
//
// A boundary is where the script itself stops: a host read, a synchronisation, an
// optimizer step. The journal hashes what is recorded between two of them. A stream
// that was seen before is worth a program of its own; one that never comes back runs
// op by op, at once, as Strict does. Hashes only guide this choice: programs are found
// by their full key.
#pragma once

#include "credit.h"
#include "first_sights.h"
#include "flush_log.h"
#include "loops.h"
#include "order.h"
#include "pieces.h"
#include "rounds.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace torchtpu {

struct Node;
struct Program;

// How Fused Eager decides; set from Python.
struct FusionPolicy {
  std::atomic<bool> background{true};          // compile on a thread of its own
  std::atomic<int64_t> max_ops{4096};          // of a trace
  std::atomic<int64_t> max_held_bytes{1 << 30};  // memory only the trace still holds
  std::atomic<int> sightings{1};               // of a stream before it is compiled
  std::atomic<int> at_first_sight{16};         // ops of one that is compiled before, at most
  std::atomic<int> patience{3};                // unknown streams in a row until ops run at once
};
FusionPolicy& fusion_policy();

// Values of a stream: where they were made, or kFromOutside and the order of their first use.
constexpr uint64_t kFromOutside = uint64_t{1} << 63;

// What is known of streams of one hash.
struct SeenStream {
  uint32_t count = 0;
  uint64_t first = 0;  // stream of this hash
  bool varies = false;  // it is one of many that differ in sizes only
  bool looked_up = false;  // on disk
  std::shared_ptr<Program> requested;  // asked for, perhaps not compiled yet
};

// What is known of the streams of the same calls, which differ in sizes only.
struct Kinship {
  uint32_t sizes = 0;     // of how many
  uint32_t programs = 0;  // asked for
};

class Journal {
 public:
  // Adds a recorded op. Values remember the stream they were made in, and the op its site: a hash
  // of the calls up to it, without sizes. Calls of one site that differ do so in sizes. A loop
  // without boundaries never comes to a site twice, but to the same recent calls.
  void note(Node& node);
  // Ends the stream and decides about the next one.
  void end(FlushReason reason);
  // Whether a piece of a loop ends after the op that was noted last.
  bool piece_ends() { return loops_.piece_ends(); }
  // Whether the stream ends before an op, as a backward pass of several has ended.
  bool round_ends(bool in_backward) const { return rounds_.end_before(in_backward); }

  // The stream is cut because it is long: whether that is because of a loop.
  bool cut_in_loop() {
    loops_.learn();
    return loops_.going_round();
  }

  // Whether ops run when they are recorded.
  bool immediate() const { return immediate_.load(std::memory_order_relaxed); }
  uint32_t length() const { return length_; }
  uint64_t epoch() const { return epoch_.load(std::memory_order_relaxed); }
  // Bytes of distinct operands from outside the stream.
  int64_t operand_bytes() const { return operand_bytes_; }
  void forgive_operand_bytes(int64_t bytes) { operand_bytes_ = bytes; }

  // Whether the present stream is new and probably no chance: no other new one ended at this line, or just
  // one of the same calls.
  bool is_first_at(const UserLine& line);
  // Whether a stream like the present one was seen before.
  bool repeats();
  // Whether it will probably go on to come.
  bool is_regular() { return is_regular(seen()); }
  // Whether the present stream is one of many that differ in sizes only.
  bool varies();
  // Whether the present stream may have a program on disk, or get one now.
  bool may_have_program();
  Pieces& pieces() { return pieces_; }
  FirstSights& first_sights() { return first_sights_; }
  // A program for all of the present stream was asked for.
  void asked();
  // The present stream ran as one program.
  void hit();
  // It did not; with `program`, one is being compiled. Unknown streams are worth deferring if programs
  // of their ops were `built` side by side, or most of their ops ran in programs of pieces.
  void miss(std::shared_ptr<Program> program, bool built, uint32_t in_pieces);
  // An op's own program was compiled while the script waited.
  void built_alone() { ++built_alone_; }
  // Forgets all streams and defers again.
  void reset();

 private:
  SeenStream& seen();
  void forget_streams();
  // Whether a stream was seen as often as it takes to be worth a program of its own.
  bool is_worth_one(const SeenStream& stream);
  bool is_regular(const SeenStream& stream) const;
  bool varies(const SeenStream& stream);
  // The stream that will probably follow one that ends: what did so the last time, or another like it.
  SeenStream& expected_after(SeenStream& stream);

  std::atomic<uint64_t> epoch_{1};  // read by other threads, as a hint
  uint64_t hash_ = 0;
  uint64_t site_ = 0;
  static constexpr size_t kRecent = 32;
  std::array<uint64_t, kRecent> calls_{};  // the last ones; only `recent_`, their hash, is read
  size_t next_call_ = 0;
  uint64_t recent_ = 0;
  uint32_t length_ = 0;
  uint32_t externals_ = 0;
  int64_t operand_bytes_ = 0;
  std::atomic<bool> immediate_{false};
  int misses_ = 0;
  uint32_t built_alone_ = 0;  // in the present stream
  uint32_t pause_ = 0;        // streams not to defer for their pieces, whose programs were not there
  uint32_t paused_ = 0;       // how many of them have come
  std::unordered_map<uint64_t, SeenStream> streams_;
  Order order_;
  std::unordered_map<uint64_t, Kinship> kin_;  // by site
  Credit credit_;
  FirstSights first_sights_;
  Loops loops_;
  Rounds rounds_;
  Pieces pieces_;
};

}  // namespace torchtpu
