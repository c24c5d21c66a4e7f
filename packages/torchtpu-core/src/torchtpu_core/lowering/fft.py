# SPDX-License-Identifier: Apache-2.0
"""Lowerings of the three FFT primitives that ``torch.fft`` and ``stft`` are made of.

XLA transforms up to three trailing dimensions at once, so the wanted dimensions are
moved to the end in groups of three. Normalisation legend, as in ATen: 0 none, 1
divide by the square root of the signal's size, 2 divide by the size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import dims, dtypes
from torchtpu_core.lowering.table import Lowering, native

_GROUP = 3


def _scaled(x: jax.Array, factor: float) -> jax.Array:
    real = np.dtype(x.dtype.type(0).real.dtype)
    return x if factor == 1 else x * np.array(factor, real).astype(x.dtype)


def _factor(normalization: int, count: int) -> float:
    """What a plain forward sum over `count` samples is multiplied by."""
    if count == 0:
        return 1.0
    return (1.0, 1.0 / math.sqrt(count), 1.0 / count)[normalization]


def _complex(x: jax.Array) -> jax.Array:
    if dtypes.is_complex(x.dtype):
        return x
    return x.astype(np.complex128 if x.dtype == np.float64 else np.complex64)


def _transform(x: jax.Array, axes: Sequence[int], kind: lax.FftType) -> jax.Array:
    """An unnormalised complex transform over `axes` (XLA divides its inverse by the size)."""
    for first in range(0, len(axes), _GROUP):
        group = tuple(axes[first : first + _GROUP])
        last = tuple(range(-len(group), 0))
        lengths = tuple(x.shape[a] for a in group)
        moved = lax.fft(jnp.moveaxis(x, group, last), kind, lengths)
        x = jnp.moveaxis(moved, last, group)
        if kind == lax.FftType.IFFT:
            x = _scaled(x, float(math.prod(lengths)))
    return x


def _signal(x: jax.Array, dim: Sequence[int]) -> tuple[tuple[int, ...], int]:
    axes = dims.wrap_all(dim, x.ndim)
    return axes, math.prod(x.shape[a] for a in axes)


def _c2c(self: jax.Array, dim: Sequence[int], normalization: int, forward: bool) -> jax.Array:
    axes, count = _signal(self, dim)
    if self.size == 0 or not axes:
        return self
    kind = lax.FftType.FFT if forward else lax.FftType.IFFT
    return _scaled(_transform(self, axes, kind), _factor(normalization, count))


def _r2c(self: jax.Array, dim: Sequence[int], normalization: int, onesided: bool) -> jax.Array:
    axes, count = _signal(self, dim)
    factor = _factor(normalization, count)
    if not onesided:
        return _scaled(_transform(_complex(self), axes, lax.FftType.FFT), factor)
    last = axes[-1]
    moved = jnp.moveaxis(self, last, -1)
    half = lax.fft(moved, lax.FftType.RFFT, (self.shape[last],))
    half = jnp.moveaxis(half, -1, last)
    return _scaled(_transform(half, axes[:-1], lax.FftType.FFT), factor)


def _c2r(self: jax.Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> jax.Array:
    axes = dims.wrap_all(dim, self.ndim)
    last = axes[-1]
    count = last_dim_size * math.prod(self.shape[a] for a in axes[:-1])
    x = _transform(self, axes[:-1], lax.FftType.IFFT)
    needed = last_dim_size // 2 + 1
    moved = jnp.moveaxis(x, last, -1)
    moved = _fitted(moved, needed)
    signal = lax.fft(moved, lax.FftType.IRFFT, (last_dim_size,))
    factor = last_dim_size * _factor(normalization, count)
    return _scaled(jnp.moveaxis(signal, -1, last), factor)


def _fitted(x: jax.Array, length: int) -> jax.Array:
    """The last dimension of `x` cut or zero-padded to `length`."""
    missing = length - x.shape[-1]
    if missing <= 0:
        return lax.slice_in_dim(x, 0, length, axis=x.ndim - 1)
    config = [(0, 0, 0)] * (x.ndim - 1) + [(0, missing, 0)]
    return lax.pad(x, dims.zero(x.dtype), config)


TABLE: tuple[Lowering, ...] = (
    native("aten::_fft_c2c", _c2c),
    native("aten::_fft_r2c", _r2c),
    native("aten::_fft_c2r", _c2r),
)
