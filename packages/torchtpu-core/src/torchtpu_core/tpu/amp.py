# SPDX-License-Identifier: Apache-2.0
"""What `torch.autocast("tpu")` asks of the backend."""

from __future__ import annotations

import torch


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes that autocast may use on the device; the first is the usual choice.

    With another, float32 among them, PyTorch warns and leaves autocast off, as on CPU and CUDA.
    """
    return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 computes: always, and natively on every TPU.

    Args:
        including_emulation: taken for the sake of `torch.cuda.is_bf16_supported`'s callers.
    """
    del including_emulation
    return True


def is_tf32_supported() -> bool:
    """Whether float32 products may use NVIDIA's TF32: never.

    `torch.set_float32_matmul_precision` chooses how the device multiplies float32.
    """
    return False
