// SPDX-License-Identifier: Apache-2.0
// Whether two values are known to be equal: the same, or the same short computation of the same.
#pragma once

#include "value.h"

namespace torchtpu {

bool same_result(const ValuePtr& a, const ValuePtr& b);

}  // namespace torchtpu
