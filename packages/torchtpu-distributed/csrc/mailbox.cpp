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

constexpr uint64_t kEntries = 256;
constexpr size_t kTextBytes = 1024 - 16;
constexpr size_t kLineBytes = 64;  // of a processor's cache: one counter each

}  // namespace

struct Mailbox::Entry {
  std::atomic<uint64_t> number;  // written last
  uint64_t length;
  char text[kTextBytes];
};

Mailbox::Mailbox(const std::string& path, int rank, int size)
    : rank_(rank), size_(size), nbytes_(kLineBytes * size + sizeof(Entry) * kEntries) {
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

std::atomic<uint64_t>& Mailbox::progress(int rank) {
  return *reinterpret_cast<std::atomic<uint64_t>*>(memory_ + kLineBytes * rank);
}

Mailbox::Entry& Mailbox::entry(uint64_t number) {
  return reinterpret_cast<Entry*>(memory_ + kLineBytes * size_)[number % kEntries];
}

bool Mailbox::post(uint64_t number, const std::string& text) {
  for (int rank = 1; rank < size_; ++rank) {
    if (progress(rank).load(std::memory_order_acquire) + kEntries < number) {
      return false;
    }
  }
  Entry& target = entry(number);
  target.length = std::min(text.size(), kTextBytes);
  std::memcpy(target.text, text.data(), target.length);
  target.number.store(number, std::memory_order_release);
  return true;
}

bool Mailbox::read(uint64_t number, std::string& text) {
  const Entry& source = entry(number);
  if (source.number.load(std::memory_order_acquire) != number) {
    return false;
  }
  text.assign(source.text, source.length);
  progress(rank_).store(number, std::memory_order_release);
  return true;
}

}  // namespace torchtpu::distributed
