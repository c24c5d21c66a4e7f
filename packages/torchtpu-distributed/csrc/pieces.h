// SPDX-License-Identifier: Apache-2.0
// Pieces that ranks exchange, whose sizes only two of them know: what each says of them in the
// mailbox, and whether it fits. Python's first_calls.Pieces writes and reads the same text, and
// words a difference.
#pragma once

#include "mailbox.h"

#include <string>
#include <vector>

namespace torchtpu::distributed {

// Bytes to each rank of a group, and from each.
std::string text_of_pieces(const std::vector<int64_t>& sent, const std::vector<int64_t>& received);

// Whether what other ranks have said of the pieces of collective `number` so far is what `rank` says.
bool pieces_fit(Mailbox& box, uint64_t number, int rank, int size, const std::string& pieces);

}  // namespace torchtpu::distributed
