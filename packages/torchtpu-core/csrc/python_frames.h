// SPDX-License-Identifier: Apache-2.0
// The Python frames of the calling thread.
#pragma once

#include "user_line.h"

namespace torchtpu {

// Where the innermost frame of the calling thread is whose code is `wanted`; unknown if there is
// none. The GIL need not be held: frames above a running call do not change. Python 3.11's are read
// in place, because asking for frame objects makes them and needs the GIL; other versions are
// asked, and `wanted` is then called with the GIL held.
UserLine innermost_frame(bool (*wanted)(PyCodeObject*));

// Whether the code of the innermost frame of the calling thread is `wanted`; the GIL as above.
bool innermost_code_is(bool (*wanted)(PyCodeObject*));

}  // namespace torchtpu
