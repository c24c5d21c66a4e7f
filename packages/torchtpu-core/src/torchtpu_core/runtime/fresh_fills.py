# SPDX-License-Identifier: Apache-2.0
"""One number in memory that nobody has written: `torch.zeros`, `torch.full`, optimizers' states.

XLA takes tens of milliseconds for the program of one shape, in which the host makes many such
tensors and copies them. So they come from the host until their copies have cost about as much
as a program; then one is compiled. A simulated device takes the program's time for either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch

from torchtpu_core.lowering import dtypes
from torchtpu_core.runtime import trace_words, transfers
from torchtpu_core.runtime.trace_lowering import Description

#: What the host copies in about the time in which XLA compiles a program.
_COPIED_BYTES = 64 << 20

#: The kind of a number that is no operand.
_ZERO = "zero"


class FreshFill:
    """Makes the tensors of one shape that hold one number; called like a program.

    Args:
        sizes: of the tensor.
        dtype: of the tensor.
        device: index of the device.
        kind: of the number, which is an operand of the program; see `of_trace`.
        compiled: makes the program that takes over.

    Attributes:
        nbytes: size of the tensor in bytes.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        dtype: torch.dtype,
        device: int,
        kind: str,
        compiled: Callable[[], Callable[..., Sequence[jax.Array]]],
    ) -> None:
        self.nbytes = math.prod(sizes) * dtype.itemsize
        self._sizes, self._device, self._kind = tuple(sizes), device, kind
        self._dtype = dtypes.to_numpy(dtype)
        self._compiled = compiled
        self._left_bytes = _COPIED_BYTES
        self._program: Callable[..., Sequence[jax.Array]] | None = None

    def __call__(self, *operands: jax.Array) -> Sequence[jax.Array]:
        """The tensor alone."""
        self._left_bytes -= self.nbytes
        if self._left_bytes < 0 and self._program is None:
            self._program = self._compiled()
        if self._program is not None:
            return self._program(*operands)
        return (transfers.put(self._on_host(operands), self._device),)

    def _on_host(self, operands: Sequence[jax.Array]) -> np.ndarray:
        if self._kind == _ZERO:
            return np.zeros(self._sizes, self._dtype)
        number = trace_words.on_host(np.asarray(operands[-1]), self._kind)
        return np.full(self._sizes, number.astype(self._dtype))


def of_trace(
    description: Description, compiled: Callable[[], Callable[..., Sequence[jax.Array]]]
) -> FreshFill | None:
    """What makes the result of a trace, None if that is not one number in fresh memory.

    Args:
        description: what `csrc/describe.cpp` makes of a trace.
        compiled: makes the trace's program.
    """
    if len(description["nodes"]) != 1:
        return None
    (node,) = description["nodes"]
    kind = _kind_of_number(node)
    if kind is None or description["operands"] or len(description["live"]) != 1:
        return None
    ((geometry, is_update, *_),) = node["outputs"]
    sizes, _, dtype = geometry
    if is_update or 0 in sizes or (kind == "f" and not dtype.is_floating_point):
        return None
    return FreshFill(sizes, dtype, description["device"], kind, compiled)


def _kind_of_number(node: Mapping[str, Any]) -> str | None:
    """Of what an operator writes everywhere: `_ZERO`, a kind of `trace_words`; None: neither."""
    if node["name"] == "aten::zero_":
        return _ZERO
    if node["name"] != "aten::fill_.Scalar":
        return None
    *_, (_, _, form, payload) = node["args"]
    return payload[1] if form == "scalar" else None
