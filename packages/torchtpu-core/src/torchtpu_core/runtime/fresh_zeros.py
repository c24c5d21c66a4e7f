# SPDX-License-Identifier: Apache-2.0
"""Zeros in memory that nobody has written, as `torch.zeros` and optimizers' states begin.

XLA takes tens of milliseconds for the program of one shape, in which the host makes many such
tensors and copies them. So zeros come from the host until their copies have cost about as much
as a program; then one is compiled. A simulated device takes the program's time for either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import torch

from torchtpu_core.runtime import transfers
from torchtpu_core.runtime.trace_lowering import Description

#: What the host copies in about the time in which XLA compiles a program.
_COPIED_BYTES = 64 << 20


class FreshZeros:
    """Makes the zeros of one shape; called like a program.

    Args:
        sizes: of the tensor.
        dtype: of the tensor.
        device: index of the device.
        compiled: makes the program that takes over.

    Attributes:
        nbytes: size of the tensor in bytes.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        dtype: torch.dtype,
        device: int,
        compiled: Callable[[], Callable[..., Sequence[jax.Array]]],
    ) -> None:
        self.nbytes = math.prod(sizes) * dtype.itemsize
        self._tensor = (sizes, dtype, device)
        self._compiled = compiled
        self._left_bytes = _COPIED_BYTES
        self._program: Callable[..., Sequence[jax.Array]] | None = None

    def __call__(self, *operands: jax.Array) -> Sequence[jax.Array]:
        """The tensor alone; operands are for the program."""
        self._left_bytes -= self.nbytes
        if self._left_bytes < 0 and self._program is None:
            self._program = self._compiled()
        if self._program is not None:
            return self._program(*operands)
        return (transfers.zeros(*self._tensor),)


def of_trace(
    description: Description, compiled: Callable[[], Callable[..., Sequence[jax.Array]]]
) -> FreshZeros | None:
    """What makes the result of a trace, None if that is not one tensor of zeros in fresh memory.

    Args:
        description: what `csrc/describe.cpp` makes of a trace.
        compiled: makes the trace's program.
    """
    if len(description["nodes"]) != 1:
        return None
    (node,) = description["nodes"]
    if node["name"] != "aten::zero_" or description["operands"] or len(description["live"]) != 1:
        return None
    ((geometry, is_update, *_),) = node["outputs"]
    sizes, _, dtype = geometry
    if is_update or 0 in sizes:
        return None
    return FreshZeros(sizes, dtype, description["device"], compiled)
