// SPDX-License-Identifier: Apache-2.0
#include "mailbox.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <thread>

namespace torchtpu::distributed {
namespace {

constexpr uint64_t kEntries = 256;
constexpr size_t kTextBytes = 1024 - 8;
constexpr size_t kLineBytes = 64;  // of a processor's cache: one counter each
constexpr int kLooks = 16;         // between two yields
constexpr std::chrono::microseconds kAwake{30};  // a reader that sleeps needs longer to wake

}  // namespace

struct Mailbox::Entry {
  std::atomic<uint32_t> number;  // written last; its low half, which a futex can wait for
  uint32_t length;
  char text[kTextBytes];
};

Mailbox::Mailbox(const std::string& path, int rank, int size)
    : rank_(rank), size_(size), nbytes_(kLineBytes * (size + 1) + sizeof(Entry) * kEntries) {
  int flags = rank == 0 ? O_RDWR | O_CREAT | O_EXCL : O_RDWR;
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

std::atomic<uint32_t>& Mailbox::sleepers() {
  return *reinterpret_cast<std::atomic<uint32_t>*>(memory_);
}

std::atomic<uint64_t>& Mailbox::progress(int rank) {
  return *reinterpret_cast<std::atomic<uint64_t>*>(memory_ + kLineBytes * (rank + 1));
}

Mailbox::Entry& Mailbox::entry(uint64_t number) {
  return reinterpret_cast<Entry*>(memory_ + kLineBytes * (size_ + 1))[number % kEntries];
}

bool Mailbox::post(uint64_t number, std::string_view text, std::string_view rest) {
  for (int rank = 1; rank < size_; ++rank) {
    if (progress(rank).load(std::memory_order_acquire) + kEntries < number) {
      return false;
    }
  }
  Entry& target = entry(number);
  size_t first = std::min(text.size(), kTextBytes);
  size_t second = std::min(rest.size(), kTextBytes - first);
  std::memcpy(target.text, text.data(), first);
  std::memcpy(target.text + first, rest.data(), second);
  target.length = static_cast<uint32_t>(first + second);
  target.number.store(static_cast<uint32_t>(number));
  if (sleepers().load() != 0) {
    ::syscall(SYS_futex, &target.number, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr,
              nullptr, 0);
  }
  return true;
}

bool Mailbox::has(uint64_t number) {
  return entry(number).number.load(std::memory_order_acquire) == static_cast<uint32_t>(number);
}

bool Mailbox::await(uint64_t number, std::chrono::microseconds patience) {
  const std::atomic<uint32_t>& there = entry(number).number;
  auto wanted = static_cast<uint32_t>(number);
  auto awake_until = std::chrono::steady_clock::now() + kAwake;
  do {
    for (int look = 0; look < kLooks; ++look) {
      if (there.load(std::memory_order_acquire) == wanted) {
        return true;
      }
    }
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < awake_until);
  timespec limit{patience.count() / 1000000, patience.count() % 1000000 * 1000};
  sleepers().fetch_add(1);
  uint32_t seen = there.load();
  if (seen != wanted) {
    ::syscall(SYS_futex, &there, FUTEX_WAIT, seen, &limit, nullptr, 0);
  }
  sleepers().fetch_sub(1);
  return there.load(std::memory_order_acquire) == wanted;
}

std::string_view Mailbox::text(uint64_t number) {
  const Entry& source = entry(number);
  return {source.text, source.length};
}

void Mailbox::taken(uint64_t number) { progress(rank_).store(number, std::memory_order_release); }

}  // namespace torchtpu::distributed
