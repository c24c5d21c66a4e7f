# SPDX-License-Identifier: Apache-2.0
"""Interpolation to another size: nearest, linear, cubic and the antialiased kinds.

Every kind is separable, and along one dimension it is the same sum: output i is made
of K input positions with constant weights. The gradient is that sum with the table
turned round, so nothing scatters. The tables are computed on the host in the dtype in
which PyTorch computes them. On a TPU the sum is a product with the table as a matrix, which
writes nothing but its result where a gather writes each tap: it is the vector unit's and the
memory's work given to the matrix unit. There a value that is not finite reaches all of its
row and column.

Legend: N batch, C channels, S spatial; K taps per output.
Reference: Keys, "Cubic convolution interpolation", IEEE TASSP 29(6), 1981.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import dtypes, mxu
from torchtpu_core.lowering.pooling import repeated
from torchtpu_core.lowering.table import Lowering, native

#: Length of a dimension up to which a TPU multiplies by its table faster than it gathers.
_MOST_MULTIPLIED = 1024


@dataclass(frozen=True, slots=True)
class Taps:
    """Along one dimension: output i is ``sum(weight[k, i] * input[index[k, i]])``.

    Attributes:
        index: `(K, out)` positions in the input.
        weight: `(K, out)`, or None if K is 1 and all weights are 1.
        size: length of the input.
    """

    index: np.ndarray
    weight: np.ndarray | None
    size: int

    def turned(self) -> Taps:
        """The table of the transpose: which outputs each input went to, with their weights."""
        taps, out = self.index.shape
        weight = np.ones((taps, out)) if self.weight is None else self.weight
        entries: list[list[tuple[int, float]]] = [[] for _ in range(self.size)]
        for k in range(taps):
            for i in range(out):
                if weight[k, i] != 0:
                    entries[self.index[k, i]].append((i, weight[k, i]))
        depth = max((len(e) for e in entries), default=0) or 1
        index = np.zeros((depth, self.size), np.int64)
        turned = np.zeros((depth, self.size), weight.dtype)
        for j, row in enumerate(entries):
            for k, (i, w) in enumerate(row):
                index[k, j], turned[k, j] = i, w
            # Unused places point where a used one does, so that a NaN elsewhere stays there.
            index[len(row) :, j] = row[0][0] if row else 0
        return Taps(index, turned, out)

    def fixed_point(self) -> Taps:
        """The table with the weights rounded as PyTorch rounds them for 8-bit pixels."""
        if self.weight is None:
            return self
        weight = self.weight.copy()
        for k in reversed(range(1, len(weight))):  # taps beyond the edge count as one
            same = self.index[k] == self.index[k - 1]
            weight[k - 1] += np.where(same, weight[k], 0)
            weight[k] = np.where(same, 0, weight[k])
        bits = 0
        while bits < 22 and int(0.5 + weight.max() * (1 << (bits + 1))) < (1 << 15):
            bits += 1
        whole = np.trunc(weight * (1 << bits) + np.copysign(0.5, weight))
        return Taps(self.index, whole / (1 << bits), self.size)

    def matrix(self) -> np.ndarray:
        """The table as `(out, size)`."""
        taps, out = self.index.shape
        weight = np.ones((taps, out)) if self.weight is None else self.weight
        dense = np.zeros((out, self.size), weight.dtype)
        np.add.at(dense, (np.broadcast_to(np.arange(out), (taps, out)), self.index), weight)
        return dense

    def sums(self) -> bool:
        """Whether each output is the plain sum of as many neighbours, and they come out even."""
        out = self.index.shape[1]
        if self.size % out:
            return False
        wanted = np.arange(self.size) // (self.size // out) == np.arange(out)[:, None]
        return bool((self.matrix() == wanted).all())

    def multiply(self, x: jax.Array, dim: int, dtype: np.dtype) -> jax.Array:
        """As `apply`, on the matrix unit, for a result that is rounded to `dtype`."""
        if self.weight is None or self.size > _MOST_MULTIPLIED or x.dtype != np.float32:
            return self.apply(x, dim)
        product = lax.dot_general(
            x,
            jnp.asarray(self.matrix().astype(x.dtype)),
            (((dim,), (1,)), ((), ())),
            precision=lax.Precision.HIGH if dtype.itemsize == 2 else lax.Precision.HIGHEST,
        )
        return jnp.moveaxis(product, -1, dim)

    def apply(self, x: jax.Array, dim: int) -> jax.Array:
        """`x` with dimension `dim` interpolated."""
        taps, out = self.index.shape
        if self.weight is None and out % max(self.size, 1) == 0:
            times = out // self.size
            if (self.index[0] == np.arange(out) // times).all():
                return repeated(x, dim, times)
        flat = jnp.asarray(self.index.reshape(-1).astype(np.int32))
        wide = x.at[(slice(None),) * dim + (flat,)].get(mode="promise_in_bounds")
        if self.weight is None:
            return wide
        wide = wide.reshape((*x.shape[:dim], taps, out, *x.shape[dim + 1 :]))
        lane = (taps, out) + (1,) * (x.ndim - dim - 1)
        total = jnp.sum(wide * jnp.asarray(self.weight.astype(x.dtype).reshape(lane)), axis=dim)
        reached = self.weight.any(axis=0)
        if not reached.all():
            total = jnp.where(reached.reshape(lane[1:]), total, x.dtype.type(0))
        return total


def _ratio(size: int, out: int, align: bool, scale: float | None, dtype: np.dtype) -> Any:
    """Input positions per output position."""
    if align:
        return dtype.type(size - 1) / dtype.type(out - 1) if out > 1 else dtype.type(0)
    if scale is not None and scale > 0:
        return dtype.type(1.0 / scale)
    return dtype.type(size) / dtype.type(out)


def _source(size: int, out: int, align: bool, scale: float | None, dtype: np.dtype) -> np.ndarray:
    """Where each output position lies in the input, before any clamping."""
    ratio, i = _ratio(size, out, align, scale, dtype), np.arange(out, dtype=dtype)
    half = dtype.type(0.5)
    return ratio * i if align else ratio * (i + half) - half


def _nearest(size: int, out: int, align: bool, scale: float | None, dtype: np.dtype) -> Taps:
    ratio = _ratio(size, out, False, scale, dtype)
    index = np.floor(np.arange(out, dtype=dtype) * ratio).astype(np.int64)
    return Taps(np.minimum(index, size - 1)[None], None, size)


def _nearest_exact(size: int, out: int, align: bool, scale: float | None, dtype: np.dtype) -> Taps:
    position = np.maximum(_source(size, out, False, scale, dtype), 0) + dtype.type(0.5)
    index = np.floor(position).astype(np.int64)
    return Taps(np.minimum(index, size - 1)[None], None, size)


def _linear(size: int, out: int, align: bool, scale: float | None, dtype: np.dtype) -> Taps:
    position = np.maximum(_source(size, out, align, scale, dtype), 0)
    low = np.minimum(position.astype(np.int64), size - 1)
    part = np.clip(position - low.astype(dtype), 0, 1).astype(dtype)
    index = np.stack([low, np.minimum(low + 1, size - 1)])
    return Taps(index, np.stack([dtype.type(1) - part, part]), size)


def cubic_weight(distance: Any, a: float) -> Any:
    """Keys' kernel with parameter `a` at a distance of at most 1, and of 1 to 2."""
    d = abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return near, far


def _cubic(size: int, out: int, align: bool, scale: float | None, dtype: np.dtype) -> Taps:
    position = _source(size, out, align, scale, dtype)
    low = np.minimum(np.floor(position).astype(np.int64), size - 1)
    part = np.clip(position - low.astype(dtype), 0, 1).astype(dtype)
    index = np.stack([np.clip(low + k, 0, size - 1) for k in (-1, 0, 1, 2)])
    one, a = dtype.type(1), dtype.type(-0.75)
    distances = (part + one, part, one - part, dtype.type(2) - part)
    choices = (1, 0, 0, 1)
    weight = [cubic_weight(d, a)[c] for d, c in zip(distances, choices, strict=True)]
    return Taps(index, np.stack(weight).astype(dtype), size)


def _triangle(x: Any, xp: Any) -> Any:
    return xp.maximum(1 - abs(x), 0)


def _keys(x: Any, xp: Any) -> Any:
    near, far = cubic_weight(x, -0.5)
    return xp.where(abs(x) < 1, near, xp.where(abs(x) < 2, far, 0))


def _lanczos(x: Any, xp: Any) -> Any:
    return xp.where(abs(x) < 3, xp.sinc(x) * xp.sinc(x / 3), 0)


class Windows(NamedTuple):
    """The places of an input that outputs are made of, each `(out,)` but `wide`.

    Attributes:
        first: the first place.
        last: the one behind the last.
        centre: where the output lies in the input.
        wide: how much the filter widens, a scalar.
    """

    first: Any
    last: Any
    centre: Any
    wide: Any


@dataclass(frozen=True, slots=True)
class Smoothing:
    """A filter that widens with the ratio of the sizes.

    Attributes:
        kernel: the weights at distances, by numpy or jax.numpy, its second operand.
        reach: half its width at ratio 1.
    """

    kernel: Callable[[Any, Any], Any]
    reach: float

    def most_taps(self, size: int, ratio: float) -> int:
        """How many places of an input an output may be made of, at most."""
        return min(size, int(2 * self.reach * max(ratio, 1)) + 2)

    def windows(self, size: Any, ratio: Any, out: int, dtype: np.dtype, xp: Any = np) -> Windows:
        """What each output is made of.

        Args:
            size: length of the input.
            ratio: input positions per output position, of `dtype`.
            out: how many outputs.
            dtype: in which positions are computed.
            xp: numpy, or jax.numpy where only the program knows size and ratio.
        """
        wide, half = xp.maximum(ratio, dtype.type(1)), dtype.type(0.5)
        support = dtype.type(self.reach) * wide
        centre = ratio * (xp.arange(out, dtype=dtype) + half)
        first = xp.maximum((centre - support + half).astype(np.int64), 0)
        last = xp.minimum((centre + support + half).astype(np.int64), size)
        return Windows(first, last, centre, wide)

    def weights(self, places: Any, windows: Windows, xp: Any = np) -> Any:
        """Weights, float64 `(n, out)`, of places of the input, `(n, out)` or `(n, 1)`."""
        half = windows.centre.dtype.type(0.5)
        distance = ((places - windows.centre + half) / windows.wide).astype(np.float64)
        inside = (places >= windows.first) & (places < windows.last)
        weight = xp.where(inside, self.kernel(distance, xp), 0)
        total = weight.sum(axis=0, keepdims=True)
        return weight / xp.where(total == 0, 1, total)  # an output may reach nothing

    def build(self, size: int, out: int, align: bool, scale: float | None, dtype: np.dtype) -> Taps:
        """The table of one dimension of known sizes."""
        ratio = _ratio(size, out, align, scale, dtype)
        most = self.most_taps(size, float(ratio))
        windows = self.windows(size, ratio, out, dtype)
        places = windows.first + np.arange(most)[:, None]
        weight = self.weights(places, windows).astype(dtype)
        index = np.clip(np.minimum(places, windows.last - 1), 0, size - 1)
        used = max(np.flatnonzero(weight.any(axis=1)), default=0) + 1
        return Taps(index[:used], weight[:used], size)


#: The antialiased kinds.
SMOOTHINGS = {
    "bilinear": Smoothing(_triangle, 1.0),
    "bicubic": Smoothing(_keys, 2.0),
    "lanczos": Smoothing(_lanczos, 3.0),
}


Build = Callable[..., Taps]


def _tables(
    build: Build,
    sizes: Sequence[int],
    outs: Sequence[int],
    align: bool,
    scales: Sequence[float | None],
    dtype: np.dtype,
) -> list[Taps]:
    scales = list(scales) + [None] * (len(sizes) - len(scales))
    return [build(n, o, align, s, dtype) for n, o, s in zip(sizes, outs, scales, strict=True)]


def _compute_dtype(dtype: np.dtype) -> np.dtype:
    compute = dtypes.opmath(dtype)
    return compute if dtypes.is_floating(compute) else np.dtype(np.float32)


def _apply(x: jax.Array, tables: Sequence[Taps], dtype: np.dtype) -> jax.Array:
    """Interpolate `(N, C, *S)`, the last dimension first; 8-bit pixels are rounded each time."""
    floating = dtypes.is_floating(dtype)
    if floating and mxu.lowers_for("tpu") and all(t.sums() for t in tables):
        return _summed(x, tables)
    for i in reversed(range(len(tables))):
        if floating and mxu.lowers_for("tpu"):
            x = tables[i].multiply(x, 2 + i, dtype)
        else:
            x = tables[i].apply(x, 2 + i)
        if x.dtype != dtype and not floating:
            x = _rounded(x, dtype).astype(x.dtype)
    return x


def _summed(x: jax.Array, tables: Sequence[Taps]) -> jax.Array:
    """Sums of neighbours along every spatial dimension at once."""
    outs = [t.index.shape[1] for t in tables]
    split = [n for t, out in zip(tables, outs, strict=True) for n in (out, t.size // out)]
    parts = lax.reshape(x, (*x.shape[:2], *split))
    return jnp.sum(parts, tuple(range(3, parts.ndim, 2)))


def _rounded(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """Cast to `dtype`; an 8-bit image is rounded and kept within its range."""
    if dtypes.is_floating(dtype):
        return x.astype(dtype)
    limits = jnp.iinfo(dtype)
    nearest = lax.floor(x + x.dtype.type(0.5))
    return jnp.clip(nearest, limits.min, limits.max).astype(dtype)


def _rows(name: str, build: Build, aligned: bool) -> tuple[Lowering, Lowering]:
    """Forward and backward rows of one overload; `aligned`: it has an ``align_corners``."""

    def forward(self: jax.Array, output_size: Sequence[int], *rest: Any) -> jax.Array:
        align, scales = (rest[0], rest[1:]) if aligned else (False, rest)
        shape = (*self.shape[:2], *output_size)
        if math.prod(shape) == 0 or self.size == 0:
            return jnp.zeros(shape, self.dtype)
        compute = _compute_dtype(self.dtype)
        pixels = self.dtype == np.uint8
        places = np.dtype(np.float64) if pixels else compute
        tables = _tables(build, self.shape[2:], output_size, align, scales, places)
        if pixels:
            tables = [t.fixed_point() for t in tables]
        if all(t.weight is None for t in tables):
            return _apply(self, tables, self.dtype)
        return _rounded(_apply(self.astype(compute), tables, self.dtype), self.dtype)

    def backward(
        grad_output: jax.Array, output_size: Sequence[int], input_size: Sequence[int], *rest: Any
    ) -> jax.Array:
        align, scales = (rest[0], rest[1:]) if aligned else (False, rest)
        if math.prod(input_size) == 0 or grad_output.size == 0:
            return jnp.zeros(tuple(input_size), grad_output.dtype)
        compute = _compute_dtype(grad_output.dtype)
        tables = _tables(build, input_size[2:], output_size, align, scales, compute)
        turned = [t.turned() for t in tables]
        grad = _apply(grad_output.astype(compute), turned, grad_output.dtype)
        return _rounded(grad, grad_output.dtype)

    return native(f"aten::{name}", forward), native(f"aten::{name}_backward", backward)


_KINDS: tuple[tuple[str, Build, bool], ...] = (
    *((f"upsample_nearest{n}d", _nearest, False) for n in (1, 2, 3)),
    *((f"_upsample_nearest_exact{n}d", _nearest_exact, False) for n in (1, 2, 3)),
    ("upsample_linear1d", _linear, True),
    ("upsample_bilinear2d", _linear, True),
    ("upsample_trilinear3d", _linear, True),
    ("upsample_bicubic2d", _cubic, True),
    *((f"_upsample_{name}2d_aa", s.build, True) for name, s in SMOOTHINGS.items()),
)

TABLE: tuple[Lowering, ...] = tuple(row for kind in _KINDS for row in _rows(*kind))
