// SPDX-License-Identifier: Apache-2.0
#include "mailbox.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace torchtpu::distributed {
namespace {

constexpr size_t kTextBytes = 1024 - 16;
constexpr size_t kLineBytes = 64;  // of a processor's cache: one counter each

}  // namespace

struct Mailbox::Entry {
  std::atomic<uint64_t> number;  // 0 while the rest is written
  uint64_t length;
  char text[kTextBytes];
};

Mailbox::Mailbox(const std::string& path, int rank, int size, uint64_t entries, uint64_t letters)
    : rank_(rank),
      size_(size),
      entries_(entries),
      letters_(letters),
      nbytes_((kLineBytes + sizeof(Entry) * (entries + letters)) * size) {
  int flags = rank == 0 ? O_RDWR | O_CREAT : O_RDWR;
  int file = ::open(path.c_str(), flags | O_CLOEXEC, 0600);
  if (file < 0) {
    throw std::runtime_error("cannot open " + path + ": " + std::strerror(errno));
  }
  void* memory = MAP_FAILED;
  if (rank != 0 || ::posix_fallocate(file, 0, static_cast<off_t>(nbytes_)) == 0) {
    memory = ::mmap(nullptr, nbytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  int error = errno;
  ::close(file);
  if (memory == MAP_FAILED) {
    throw std::runtime_error("cannot map " + path + ": " + std::strerror(error));
  }
  memory_ = static_cast<char*>(memory);
}

Mailbox::~Mailbox() { ::munmap(memory_, nbytes_); }

std::atomic<uint64_t>& Mailbox::progress(int rank) {
  return *reinterpret_cast<std::atomic<uint64_t>*>(memory_ + kLineBytes * rank);
}

Mailbox::Entry& Mailbox::entry(int rank, uint64_t number) {
  return reinterpret_cast<Entry*>(memory_ + kLineBytes * size_)[rank * entries_ + number % entries_];
}

Mailbox::Entry& Mailbox::letter_at(int rank, uint64_t number) {
  return (&entry(0, 0))[size_ * entries_ + rank * letters_ + number % letters_];
}

void Mailbox::write(Entry& target, uint64_t number, std::string_view text, std::string_view rest) {
  size_t first = std::min(text.size(), kTextBytes);
  size_t second = std::min(rest.size(), kTextBytes - first);
  target.number.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(target.text, text.data(), first);
  std::memcpy(target.text + first, rest.data(), second);
  target.length = first + second;
  target.number.store(number);  // in one order with the loads of the other ranks
}

std::optional<std::string> Mailbox::copy_of(const Entry& source, uint64_t number) {
  std::string copy(source.text, std::min<uint64_t>(source.length, kTextBytes));
  std::atomic_thread_fence(std::memory_order_acquire);
  return source.number.load(std::memory_order_relaxed) == number ? std::optional(copy) : std::nullopt;
}

bool Mailbox::post(uint64_t number, std::string_view text, std::string_view rest) {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_ && progress(rank).load(std::memory_order_acquire) + entries_ < number) {
      return false;
    }
  }
  write(entry(rank_, number), number, text, rest);
  return true;
}

void Mailbox::take_back(uint64_t number) {
  Entry& mine = entry(rank_, number);
  uint64_t there = number;
  mine.number.compare_exchange_strong(there, 0);
}

int Mailbox::differing(uint64_t number, std::string_view digest) {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_ && entry(rank, number).number.load() == number && !text(rank, number).starts_with(digest)) {
      return rank;
    }
  }
  return -1;
}

std::string_view Mailbox::text(int rank, uint64_t number) {
  const Entry& source = entry(rank, number);
  return {source.text, source.length};
}

std::optional<std::string> Mailbox::said(int rank, uint64_t number) {
  const Entry& source = entry(rank, number);
  return source.number.load(std::memory_order_acquire) == number ? copy_of(source, number) : std::nullopt;
}

void Mailbox::put(uint64_t number, std::string_view text) { write(letter_at(rank_, number), number, text, {}); }

std::optional<std::string> Mailbox::letter(int rank, std::string_view key) {
  for (uint64_t i = 0; i < letters_; ++i) {
    const Entry& source = letter_at(rank, i);
    uint64_t number = source.number.load();
    if (number != 0 && std::memcmp(source.text, key.data(), std::min(key.size(), kTextBytes)) == 0) {
      std::optional<std::string> copy = copy_of(source, number);
      if (copy && copy->starts_with(key)) {
        return copy;
      }
    }
  }
  return std::nullopt;
}

void Mailbox::taken(uint64_t number) { progress(rank_).store(number, std::memory_order_release); }

}  // namespace torchtpu::distributed
