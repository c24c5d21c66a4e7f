# SPDX-License-Identifier: Apache-2.0
"""How much memory a device has, and being out of it: on simulated HBM, or as XLA finds it."""

from __future__ import annotations

from typing import NoReturn

import torch
from jax.errors import JaxRuntimeError

from torchtpu_core.errors import ProgramFailedError
from torchtpu_core.runtime.current import target
from torchtpu_core.units import GIB

_FIX = "Use a smaller batch, activation checkpointing or bfloat16"
#: How XLA says that it is out of memory; the CPU client has no class of error for it.
_WORDS = ("RESOURCE_EXHAUSTED", "Out of memory allocating")


def raise_out_of_memory(device: int, requested: int, allocated: int, limit: int) -> NoReturn:
    """Raise torch.OutOfMemoryError for a program whose results do not fit.

    Args:
        device: index of the device.
        requested: bytes the program would add.
        allocated: bytes in use.
        limit: bytes a device of the target can hold.
    """
    raise torch.OutOfMemoryError(
        f"TPU out of memory (simulated {target().name}). Tried to allocate "
        f"{requested / GIB:.2f} GiB on tpu:{device}, which holds {limit / GIB:.2f} GiB and has "
        f"{allocated / GIB:.2f} GiB in use. {_FIX}, or a target with more HBM "
        "(TORCH_TPU_TARGET=v5p:2x2x1). torch.tpu.debug() lists the largest live tensors."
    )


def raise_of_run(error: BaseException) -> NoReturn:
    """Raise what XLA says of a program that it could not compile or run.

    Raises:
        OutOfMemoryError: there was no memory for it.
        ProgramFailedError: any other of its errors; JAX's class shows no line that is added to it.
    """
    words = str(error)
    if not isinstance(error, JaxRuntimeError):
        raise error
    if not any(w in words for w in _WORDS):
        raise ProgramFailedError(f"XLA could not compile or run a program: {words}") from error
    raise torch.OutOfMemoryError(
        f"TPU out of memory (target {target().name}): XLA has no room for a program's values "
        f"({words}). {_FIX}. torch.tpu.debug() lists the largest live tensors."
    ) from error


def memory_info(device: int) -> tuple[int, int]:
    """Free and total bytes of a device."""
    from torchtpu_core.tpu.memory import mem_get_info

    return mem_get_info(device)
