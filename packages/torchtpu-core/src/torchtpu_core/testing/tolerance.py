# SPDX-License-Identifier: Apache-2.0
"""The one tolerance table: how far a result may be from CPU PyTorch's, by dtype."""

from __future__ import annotations

import torch

#: (rtol, atol) by dtype; exact for everything else.
TOLERANCE: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-7, 1e-7),
    torch.complex128: (1e-7, 1e-7),
    torch.float32: (1.3e-5, 1e-5),
    torch.complex64: (1.3e-5, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float16: (1e-3, 1e-5),
}
