// SPDX-License-Identifier: Apache-2.0
#include "pieces.h"

#include <sstream>

namespace torchtpu::distributed {
namespace {

// The bytes; none of a text that has been cut, which does not end with a point.
std::vector<int64_t> read_pieces(const std::string& text) {
  std::istringstream words(text);
  std::vector<int64_t> bytes;
  for (int64_t each = 0; words >> each;) {
    bytes.push_back(each);
  }
  return text.ends_with(" .") ? bytes : std::vector<int64_t>();
}

// What stands after the digest, the call and the line.
std::string fourth_line(const std::string& said) {
  size_t at = 0;
  for (int line = 0; line < 3 && at != std::string::npos; ++line) {
    at = said.find('\n', at == 0 ? 0 : at + 1);
  }
  return at == std::string::npos ? std::string() : said.substr(at + 1);
}

}  // namespace

std::string text_of_pieces(const std::vector<int64_t>& sent, const std::vector<int64_t>& received) {
  std::string text;
  for (const std::vector<int64_t>* pieces : {&sent, &received}) {
    for (int64_t bytes : *pieces) {
      text += std::to_string(bytes) + " ";
    }
  }
  return text + ".";
}

bool pieces_fit(Mailbox& box, uint64_t number, int rank, int size, const std::string& pieces) {
  std::vector<int64_t> mine = read_pieces(pieces);
  for (int other = 0; other < size; ++other) {
    std::optional<std::string> said = other != rank ? box.said(other, number) : std::nullopt;
    std::vector<int64_t> theirs = said ? read_pieces(fourth_line(*said)) : std::vector<int64_t>();
    bool known = theirs.size() == mine.size() && theirs.size() == 2 * static_cast<size_t>(size);
    if (known && (theirs[size + rank] != mine[other] || theirs[rank] != mine[size + other])) {
      return false;
    }
  }
  return true;
}

}  // namespace torchtpu::distributed
