# SPDX-License-Identifier: Apache-2.0
"""Reading and writing a value through a tensor's strides in host memory.

What `torchtpu_core.lowering.storage_views` does inside a program, for devices whose memory
is host memory: no program per size.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from torchtpu_core.lowering import dtypes
from torchtpu_core.lowering.promotion import SCALAR_WORDS
from torchtpu_core.lowering.storage_views import Geometry, Plan
from torchtpu_core.runtime import transfers


def on_host(array: jax.Array) -> np.ndarray:
    """An array's elements, read in place once they are computed; not to be written."""
    if not transfers.is_ready(array):
        transfers.wait(array)
    return np.asarray(array)


def starts_of(words: np.ndarray | jax.Array | None) -> list[int]:
    """The scalar operands of a trace as integers: those that are starts of views."""
    if words is None:
        return []
    rows = np.asarray(words).reshape(-1, SCALAR_WORDS)
    return (rows[:, 0].astype(np.int64) | (rows[:, 1].astype(np.int64) << 32)).tolist()


def read(
    value: np.ndarray, base: Geometry, view: Geometry, plan: Plan, starts: Sequence[int]
) -> np.ndarray:
    """The view's elements, `view.sizes`, not copied where they need not be.

    Args:
        value: the storage's value, `base.sizes`.
        base: the geometry of `value`.
        view: the tensor's sizes, strides and dtype.
        plan: how the view lies in the value.
        starts: one per run-time start of the plan.
    """
    if plan.kind == "identity":
        return value
    window = _window(_in_memory(value, base), view, _offset(plan, starts))
    return window if base.dtype == view.dtype else transfers.truths(window)


def written(
    value: np.ndarray,
    base: Geometry,
    view: Geometry,
    plan: Plan,
    starts: Sequence[int],
    update: np.ndarray,
) -> np.ndarray:
    """A copy of `value` with the view's elements replaced; arguments as for `read`.

    Args:
        update: what is written, `view.sizes`.
    """
    flat = _in_memory(value, base).copy()
    _window(flat, view, _offset(plan, starts))[...] = update
    if base.dtype != view.dtype:
        flat = transfers.truths(flat)
    order = base.memory_order
    in_memory = flat.reshape([base.sizes[d] for d in order])
    return np.transpose(in_memory, np.argsort(order))


def _in_memory(value: np.ndarray, base: Geometry) -> np.ndarray:
    """The elements in the order of the storage's memory, one dimension."""
    return np.ascontiguousarray(np.transpose(value, base.memory_order)).reshape(-1)


def _offset(plan: Plan, starts: Sequence[int]) -> int:
    """The first element of the view, in elements of its dtype."""
    if plan.kind == "gather":
        return starts[0]
    offset = 0
    for start, radix in zip(starts, plan.radix, strict=True):
        offset = offset * radix + start
    return offset


def _window(flat: np.ndarray, view: Geometry, offset: int) -> np.ndarray:
    dtype = np.dtype(dtypes.to_numpy(view.dtype))
    strides = tuple(stride * dtype.itemsize for stride in view.strides)
    memory = flat.view(np.uint8)  # whatever the dtype, NumPy takes it for a buffer
    return np.ndarray(view.sizes, dtype, memory, offset * dtype.itemsize, strides)
