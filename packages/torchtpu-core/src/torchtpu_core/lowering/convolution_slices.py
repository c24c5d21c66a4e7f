# SPDX-License-Identifier: Apache-2.0
"""3-D convolutions as 2-D ones of slices, on XLA:CPU.

XLA:CPU convolves images by Eigen's kernels and volumes by a loop of its own, which takes up to 13
times as long for few channels and as long for 256 (jaxlib 0.10.2). The slices that a kernel meets
along the depth become channels of one image: a volume is copied as often as the kernel is deep.
What a chip model prices has whole volumes, as a TPU convolves them.

Legend: N batch, C input channels, O output channels, G groups, D depth, K kernel.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu_core.lowering import mxu
from torchtpu_core.lowering.convolution_geometry import Geometry

#: A 2-D convolution of a geometry, its operand dilated.
Convolve = Callable[[jax.Array, jax.Array, Geometry, Sequence[int]], jax.Array]

_local = threading.local()


@contextlib.contextmanager
def volumes_whole() -> Iterator[None]:
    """Convolve volumes as such inside the block, whatever the platform."""
    outer = getattr(_local, "whole", False)
    _local.whole = True
    try:
        yield
    finally:
        _local.whole = outer


def applies(g: Geometry) -> bool:
    """Whether a convolution is one of slices."""
    whole = getattr(_local, "whole", False)
    return len(g.stride) == 3 and mxu.lowers_for("cpu") and not whole


def written() -> int:
    """How many convolutions this thread has written as ones of slices."""
    return getattr(_local, "written", 0)


def convolve(
    x: jax.Array, weight: jax.Array, g: Geometry, spread: Sequence[int], images: Convolve
) -> jax.Array:
    """`(N, C, D, H, W)`, `(O, C/G, K, K', K'')` -> `(N, O, D', H', W')` by `images`.

    Args:
        x: volumes.
        weight: the kernel.
        g: of the 3-D convolution.
        spread: dilation of `x`, one per spatial dimension.
        images: convolves `(N, C, H, W)` with `(O, C/G, K', K'')`.
    """
    _local.written = written() + 1
    out, inner, deep, *kernel = weight.shape
    hole = (0, 0, 0)
    along = (*g.padding[0], spread[0] - 1)
    x = lax.pad(x, jnp.zeros((), x.dtype), [hole, hole, along, hole, hole])
    reach = (deep - 1) * g.dilation[0]
    steps = (x.shape[2] - reach - 1) // g.stride[0] + 1
    met = [
        lax.slice_in_dim(x, start, start + (steps - 1) * g.stride[0] + 1, g.stride[0], axis=2)
        for start in range(0, reach + 1, g.dilation[0])
    ]
    stacked = jnp.stack(met, axis=2)  # N, C, K, D', H, W
    batch, channels, _, _, *sizes = stacked.shape
    folded = jnp.moveaxis(stacked, 3, 1).reshape((batch * steps, channels * deep, *sizes))
    flat = replace(g, stride=g.stride[1:], padding=g.padding[1:], dilation=g.dilation[1:])
    mixed = images(folded, weight.reshape((out, inner * deep, *kernel)), flat, spread[1:])
    return jnp.moveaxis(mixed.reshape((batch, steps, *mixed.shape[1:])), 1, 2)
