# SPDX-License-Identifier: Apache-2.0
"""Rearrangements of image blocks: im2col, col2im, and the shuffles.

Legend: N batch, C channels, H and W spatial, R factor, L blocks of one image.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import dtypes
from torchtpu_core.lowering.pooling import windows
from torchtpu_core.lowering.table import Lowering, native


def im2col(
    self: jax.Array,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> jax.Array:
    """`(N, C, H, W)` or `(C, H, W)` -> `([N,] C * KH * KW, L)`."""
    lead, sizes = self.shape[:-3], self.shape[-2:]
    spec = windows(sizes, kernel_size, stride, padding, dilation)
    pads = [(0, 0, 0)] * (self.ndim - 2) + [(w.padding, w.padding, 0) for w in spec]
    x = lax.pad(self, jnp.zeros((), self.dtype), pads)
    dim = self.ndim - 2
    for w in spec:
        places = np.arange(w.kernel)[:, None] * w.dilation + np.arange(w.out)[None, :] * w.stride
        index = jnp.asarray(places.astype(np.int32))
        x = x.at[(slice(None),) * dim + (index,)].get(mode="promise_in_bounds")
        dim += 2
    x = jnp.swapaxes(x, -3, -2)  # (.., C, KH, KW, OH, OW)
    rows = self.shape[-3] * spec[0].kernel * spec[1].kernel
    return x.reshape((*lead, rows, spec[0].out * spec[1].out))


def col2im(
    self: jax.Array,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> jax.Array:
    """`([N,] C * KH * KW, L)` -> `([N,] C, H, W)`: overlapping blocks are added."""
    compute = dtypes.opmath(self.dtype)
    channels = self.shape[-2] // (kernel_size[0] * kernel_size[1])
    shape = (*self.shape[:-2], channels, *output_size)
    if 0 in shape:
        return jnp.zeros(shape, self.dtype)

    def unfold(x: jax.Array) -> jax.Array:
        return im2col(x, kernel_size, dilation, padding, stride)

    transposed = jax.linear_transpose(unfold, jax.ShapeDtypeStruct(shape, compute))
    (out,) = transposed(self.astype(compute))
    return out.astype(self.dtype)


def pixel_shuffle(self: jax.Array, upscale_factor: int) -> jax.Array:
    """`(..., C * R * R, H, W)` -> `(..., C, H * R, W * R)`."""
    *lead, channels, height, width = self.shape
    r = upscale_factor
    x = self.reshape((*lead, channels // (r * r), r, r, height, width))
    n = len(lead) + 1
    x = lax.transpose(x, (*range(n), n + 2, n, n + 3, n + 1))
    return x.reshape((*lead, channels // (r * r), height * r, width * r))


def pixel_unshuffle(self: jax.Array, downscale_factor: int) -> jax.Array:
    """`(..., C, H * R, W * R)` -> `(..., C * R * R, H, W)`."""
    *lead, channels, height, width = self.shape
    r = downscale_factor
    x = self.reshape((*lead, channels, height // r, r, width // r, r))
    n = len(lead) + 1
    x = lax.transpose(x, (*range(n), n + 1, n + 3, n, n + 2))
    return x.reshape((*lead, channels * r * r, height // r, width // r))


def channel_shuffle(self: jax.Array, groups: int) -> jax.Array:
    """`(N, C, ...)`: channels of different groups become neighbours."""
    batch, channels, *rest = self.shape
    x = self.reshape((batch, groups, channels // groups, *rest))
    return jnp.swapaxes(x, 1, 2).reshape(self.shape)


TABLE: tuple[Lowering, ...] = (
    native("aten::im2col", im2col),
    native("aten::col2im", col2im),
    native("aten::pixel_shuffle", pixel_shuffle),
    native("aten::pixel_unshuffle", pixel_unshuffle),
    native("aten::channel_shuffle", channel_shuffle),
)
