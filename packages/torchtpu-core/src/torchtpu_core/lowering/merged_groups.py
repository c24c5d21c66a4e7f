# SPDX-License-Identifier: Apache-2.0
"""Convolutions of narrow groups as those of fewer, wider ones, on a TPU.

XLA's TPU compiler convolves an image of G groups over a dimension of groups, `(N, G, C/G, *S)`,
whose features of one group lie along a tile's rows and whose batch along its lanes: images of eight
pictures and groups of four features take sixteen times their bytes. The matrix unit multiplies 128
features at once, so that a product of as many, whose weight is zero between groups, costs it no
more. A ResNeXt-50 (autocast, 32 images) takes 15.3 instead of 24.2 ms and 1,910 instead of 2,686
MiB, four layers of groups of eight over waves 1.8 instead of 9.6 ms (libtpu's schedule for v5e,
simulated). Values that are not finite reach the features of the groups merged with theirs.

Legend: N batch, C input and O output channels, G groups, M groups merged, S spatial, K kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import mxu
from torchtpu_core.lowering.convolution_geometry import Geometry
from torchtpu_core.lowering.layout import LANES


def merged_count(groups: int, inner: int, out: int) -> int:
    """How many groups of so many features are multiplied as one: as many as the MXU has room for.

    >>> merged_count(32, 4, 4), merged_count(9, 24, 24), merged_count(17, 64, 64)
    (32, 3, 1)
    >>> merged_count(64, 1, 2)  # depthwise convolutions are done by the vector unit
    1
    """
    room = LANES // max(inner, out) if inner > 1 else 1
    return max((m for m in range(1, room + 1) if groups % m == 0), default=1)


def merged_for(image: Sequence[int], weight: Sequence[int], groups: int) -> int:
    """How many groups of a convolution of an image are merged, by the shapes.

    None where the weight is larger than the image, as in wav2vec 2.0 (128 taps): a wider one and
    its gradient would be written.

    >>> merged_for((8, 128, 56, 56), (128, 4, 3, 3), 32)
    32
    >>> merged_for((8, 768, 99), (768, 48, 128), 16)
    1
    """
    if groups == 1 or not 0 < math.prod(weight) <= math.prod(image):
        return 1
    return merged_count(groups, weight[1], weight[0] // groups)


def merges(x: jax.Array, weight: jax.Array, g: Geometry) -> int:
    """How many groups of a convolution of `x` this program merges."""
    return merged_for(x.shape, weight.shape, g.groups) if mxu.lowers_for("tpu") else 1


def merged(weight: jax.Array, g: Geometry, count: int) -> tuple[jax.Array, Geometry]:
    """`(O, C/G, *K)` of `count` groups each, `(O, M C/G, *K)`, and the geometry for it."""
    blocks = _blocks(weight[:, None], g, count)
    wide = jnp.where(_diagonal(weight, count), blocks, jnp.zeros((), weight.dtype))
    shape = (weight.shape[0], count * weight.shape[1], *weight.shape[2:])
    return lax.reshape(wide, shape), replace(g, groups=g.groups // count)


def parted(gradient: jax.Array, g: Geometry, count: int) -> jax.Array:
    """The gradient `(O, C/G, *K)` of the weight of which `merged` made that of `gradient`."""
    out, wide, *kernel = gradient.shape
    blocks = _blocks(gradient.reshape((out, count, wide // count, *kernel)), g, count)
    kept = jnp.where(_diagonal(gradient, count), blocks, jnp.zeros((), gradient.dtype))
    return jnp.sum(kept, axis=3).reshape((out, wide // count, *kernel))


def _blocks(weight: jax.Array, g: Geometry, count: int) -> jax.Array:
    """`(O, M or 1, C/G, *K)` -> `(G/M, M, O/G, M or 1, C/G, *K)`."""
    rest = weight.shape[1:]
    return lax.reshape(weight, (g.groups // count, count, weight.shape[0] // g.groups, *rest))


def _diagonal(weight: jax.Array, count: int) -> np.ndarray:
    """Which blocks of `_blocks` are of one group."""
    return np.eye(count, dtype=bool).reshape((1, count, 1, count) + (1,) * (weight.ndim - 1))
