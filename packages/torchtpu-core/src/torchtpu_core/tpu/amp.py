# SPDX-License-Identifier: Apache-2.0
"""What `torch.autocast("tpu")` asks of the backend."""

from __future__ import annotations

import torch


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes that autocast may use on the device; the first is the usual choice."""
    return [torch.bfloat16, torch.float16, torch.float32]
