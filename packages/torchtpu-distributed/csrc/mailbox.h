// SPDX-License-Identifier: Apache-2.0
// What the first rank of a group calls, for the other ranks on its machine to compare.
//
// A ring of entries in memory the processes share. The first rank writes one entry per
// collective, the others read it; a counter per rank keeps the writer from overtaking a
// reader by a whole ring. It carries names of calls only, never data of tensors.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace torchtpu::distributed {

class Mailbox {
 public:
  // Maps `path`, which is made first if this is the writer (rank 0 of `size`).
  Mailbox(const std::string& path, int rank, int size);
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;
  ~Mailbox();

  // Writes entry `number`, from 1. False, and nothing, while a reader needs the one it replaces.
  bool post(uint64_t number, std::string_view text, std::string_view rest = {});

  bool has(uint64_t number);

  // Waits until entry `number` is there; false after `patience`.
  bool await(uint64_t number, std::chrono::microseconds patience);

  // Entry `number`, which is there; the writer may replace it once it is `taken`.
  std::string_view text(uint64_t number);
  void taken(uint64_t number);

 private:
  struct Entry;
  std::atomic<uint32_t>& sleepers();
  std::atomic<uint64_t>& progress(int rank);
  Entry& entry(uint64_t number);

  int rank_;
  int size_;
  size_t nbytes_;
  char* memory_;
};

}  // namespace torchtpu::distributed
