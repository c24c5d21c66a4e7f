# SPDX-License-Identifier: Apache-2.0
"""Strided convolutions of few channels as convolutions of phases without stride, on a TPU.

Legend: N batch, C input channels, O output channels, S spatial, K kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu_core.lowering import mxu
from torchtpu_core.lowering.convolution_geometry import Geometry

#: Channels up to which a TPU convolves the phases of a strided convolution's input.
_FEW_CHANNELS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """A strided convolution as one without stride, of as many more channels as it skips places.

    A TPU pads a few channels, as images and waves have, to a tile of 128: there, each position of
    a stride becomes channels of its own.

    Attributes:
        stride: of the convolution.
        low: padding before the input.
        sizes: of the input.
        kernel: of the weight.
        out: sizes of the result.
    """

    stride: tuple[int, ...]
    low: tuple[int, ...]
    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def taps(self) -> list[int]:
        """The kernel of the convolution without stride."""
        return [-(-k // s) for k, s in zip(self.kernel, self.stride, strict=True)]

    @property
    def places(self) -> list[int]:
        """Sizes of the input of the convolution without stride."""
        return [n + k - 1 for n, k in zip(self.out, self.taps, strict=True)]

    @property
    def geometry(self) -> Geometry:
        """The convolution without stride."""
        ones = (1,) * len(self.stride)
        return Geometry(stride=ones, padding=((0, 0),) * len(ones), dilation=ones, groups=1)

    def split_input(self, x: jax.Array) -> jax.Array:
        """`(N, C, *S)` -> `(N, C * prod(stride), *places)`."""
        return self._split(x, self.places, self.low)

    def split_weight(self, weight: jax.Array) -> jax.Array:
        """`(O, C, *K)` -> `(O, C * prod(stride), *taps)`."""
        return self._split(weight, self.taps, (0,) * len(self.stride))

    def join_input(self, x: jax.Array) -> jax.Array:
        """The transpose of `split_input`."""
        return self._join(x, self.sizes, self.low)

    def join_weight(self, weight: jax.Array) -> jax.Array:
        """The transpose of `split_weight`."""
        return self._join(weight, self.kernel, (0,) * len(self.stride))

    def _split(self, x: jax.Array, counts: Sequence[int], low: Sequence[int]) -> jax.Array:
        pads = [
            (before, n * s - size - before, 0)
            for before, n, s, size in zip(low, counts, self.stride, x.shape[2:], strict=True)
        ]
        x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), *pads])
        both = [n for pair in zip(counts, self.stride, strict=True) for n in pair]
        x = lax.reshape(x, (*x.shape[:2], *both))
        x = lax.transpose(x, (0, 1, *range(3, x.ndim, 2), *range(2, x.ndim, 2)))
        return lax.reshape(x, (x.shape[0], x.shape[1] * math.prod(self.stride), *counts))

    def _join(self, x: jax.Array, sizes: Sequence[int], low: Sequence[int]) -> jax.Array:
        spatial, counts = len(sizes), x.shape[2:]
        channels = x.shape[1] // math.prod(self.stride)
        x = lax.reshape(x, (x.shape[0], channels, *self.stride, *counts))
        pairs = [d for i in range(spatial) for d in (2 + spatial + i, 2 + i)]
        x = lax.transpose(x, (0, 1, *pairs))
        whole = [n * s for n, s in zip(counts, self.stride, strict=True)]
        x = lax.reshape(x, (x.shape[0], channels, *whole))
        pads = [
            (-before, size + before - n, 0)
            for before, size, n in zip(low, sizes, whole, strict=True)
        ]
        return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), *pads])


def _padded(batch: int, channels: int) -> float:
    """Elements of a TPU's tiles over those of a batch, the lanes along whichever wastes less."""
    sizes = [-(-a // 128) * 128 * -(-b // 8) * 8 for a, b in ((batch, channels), (channels, batch))]
    return min(sizes) / (batch * channels)


def phases_of(
    shape: Sequence[int], kernel: Sequence[int], out: Sequence[int], g: Geometry
) -> Phases | None:
    """The phases of a convolution of `(N, C, *S)` if a TPU convolves these."""
    batch, channels, *sizes = shape
    few = g.groups == 1 and channels <= _FEW_CHANNELS and kernel[0] > 1
    # The phases of images lie so far apart that moving them takes more than it saves.
    few = few and len(sizes) == 1
    if not few or any(d > 1 for d in g.dilation) or not mxu.lowers_for("tpu"):
        return None
    if _padded(batch, channels) <= 2 * _padded(batch, channels * math.prod(g.stride)):
        return None
    return Phases(
        stride=g.stride,
        low=tuple(low for low, _ in g.padding),
        sizes=tuple(sizes),
        kernel=tuple(kernel),
        out=tuple(out),
    )
