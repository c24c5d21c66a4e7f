// SPDX-License-Identifier: Apache-2.0
// What the ranks of a group on one machine call, for each to compare with the others.
//
// Each rank has a ring of entries in memory that the processes share. It writes one entry per
// collective, and then looks at those that are there already: of two ranks at least one sees the
// other's, so nobody waits. A counter per rank keeps writers from overtaking a reader by a whole
// ring. It carries names of calls only, never data of tensors.
//
// Messages have rings of their own, the `letters`: only two ranks know of each, so nobody waits for
// a reader, and what falls out of a ring is not compared.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace torchtpu::distributed {

class Mailbox {
 public:
  // Maps a file, to which rank 0 of `size` gives its length. A rank's rings have `entries` for
  // collectives and `letters` for messages.
  Mailbox(const std::string& path, int rank, int size, uint64_t entries = kEntries, uint64_t letters = 0);
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;
  ~Mailbox();

  // Writes this rank's entry `number`, from 1. False, and nothing, while a reader may need the one
  // it replaces.
  bool post(uint64_t number, std::string_view text, std::string_view rest = {});

  // Takes back this rank's entry `number`, its last.
  void take_back(uint64_t number);

  // The first rank whose entry `number` is there and does not begin with `digest`; else -1.
  int differing(uint64_t number, std::string_view digest);

  // A rank's entry `number`, which is there; its writer may replace it once it is `taken`.
  std::string_view text(int rank, uint64_t number);
  void taken(uint64_t number);

  // A copy of a rank's entry `number`; none if it is not there, or is being replaced.
  std::optional<std::string> said(int rank, uint64_t number);
  static constexpr uint64_t kEntries = 128;

  // Writes this rank's letter `number`, from 1.
  void put(uint64_t number, std::string_view text);
  // A copy of a rank's letter that begins with `key`; none if it is not there.
  std::optional<std::string> letter(int rank, std::string_view key);

 private:
  struct Entry;
  std::atomic<uint64_t>& progress(int rank);
  Entry& entry(int rank, uint64_t number);
  Entry& letter_at(int rank, uint64_t number);
  static void write(Entry& target, uint64_t number, std::string_view text, std::string_view rest);
  static std::optional<std::string> copy_of(const Entry& source, uint64_t number);

  int rank_;
  int size_;
  uint64_t entries_;
  uint64_t letters_;
  size_t nbytes_;
  char* memory_;
};

}  // namespace torchtpu::distributed
