# SPDX-License-Identifier: Apache-2.0
"""Average pooling, plain and adaptive, and adaptive maximum pooling, with their backwards.

Sums are separable, one dimension after the other, and so are their backward passes: the linear
transpose of the forward, or, where windows lie side by side, each gradient in all places of its
window. (As a transpose that is a sum of arrays of the input's size, which XLA's TPU compiler
writes, and XLA:CPU takes 2 to 6 times as long for.) On a TPU, which writes what is made of each
dimension, windows side by side in all dimensions are summed and filled at once.

Legend: P leading dimensions (batch and channels, or channels alone), S spatial.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import dtypes, mxu
from torchtpu_core.lowering.pooling import (
    Window,
    as_list,
    flat_index,
    padded,
    reduce_windows,
    scatter_gradient,
    tap,
    windows,
)
from torchtpu_core.lowering.table import Lowering, native

#: Longer kernels use ``reduce_window`` instead of one slice per position.
_MAX_TAPS = 16


def window_sum(x: jax.Array, dim: int, w: Window) -> jax.Array:
    """Sums over the windows of one dimension; what lies outside the input counts as zero."""
    w = _trimmed(w)
    if w.is_whole:
        return jnp.sum(x, axis=dim, keepdims=True)
    if _lie_side_by_side(w) and mxu.lowers_for("tpu"):
        x = lax.slice_in_dim(x, 0, w.out * w.kernel, 1, dim)
        return jnp.sum(x.reshape((*x.shape[:dim], w.out, w.kernel, *x.shape[dim + 1 :])), dim + 1)
    zero = jnp.zeros((), x.dtype)
    x = padded(x, dim, w, zero)
    if w.kernel <= _MAX_TAPS:
        return functools.reduce(lax.add, [tap(x, dim, w, i) for i in range(w.kernel)])
    extent, step = [1] * x.ndim, [1] * x.ndim
    extent[dim], step[dim] = w.kernel, w.stride
    # a concrete zero, else JAX does not see a sum and cannot transpose it
    out = lax.reduce_window(x, np.zeros((), x.dtype), lax.add, extent, step, "VALID")
    return lax.slice_in_dim(out, 0, w.out, 1, dim)


def _lie_side_by_side(w: Window) -> bool:
    """Whether each value belongs to one window at most, and every window is whole."""
    return w.kernel == w.stride and not w.padding and w.out * w.kernel <= w.size


def _trimmed(w: Window) -> Window:
    """The window without positions of the kernel that never meet the input.

    Some models pool images of 7 x 7 by a kernel of their 2,560 features, in ceil mode.
    """
    before = max(0, w.padding - (w.out - 1) * w.stride)
    kernel = min(w.kernel, w.size + w.padding) - before
    return replace(w, kernel=kernel, padding=w.padding - before)


def _extents(w: Window, include_pad: bool) -> np.ndarray:
    """How many positions each window of one dimension counts."""
    start = np.arange(w.out) * w.stride - w.padding
    end = np.minimum(start + w.kernel, w.size + w.padding)
    if not include_pad:
        start, end = np.maximum(start, 0), np.minimum(end, w.size)
    return end - start


def divisor(spec: Sequence[Window], include_pad: bool, override: int | None) -> np.ndarray:
    """What each window's sum is divided by, shape of the windows."""
    if override is not None:
        return np.full((1,) * len(spec), override, np.int64)
    grids = np.ix_(*(_extents(w, include_pad) for w in spec))
    return functools.reduce(np.multiply, grids)


def _divide(total: jax.Array, counts: np.ndarray) -> jax.Array:
    if (counts == counts.flat[0]).all():
        counts = counts.reshape(-1)[:1]
    by = jnp.asarray(counts.astype(total.dtype))
    if dtypes.is_floating(total.dtype):
        return total / by
    return lax.div(total, jnp.broadcast_to(by, total.shape))


def _average(x: jax.Array, spec: Sequence[Window], counts: np.ndarray) -> jax.Array:
    if all(map(_lie_side_by_side, spec)) and mxu.lowers_for("tpu"):
        return _divide(_sums_side_by_side(x, spec), counts)
    for i, w in enumerate(spec):
        x = window_sum(x, x.ndim - len(spec) + i, w)
    return _divide(x, counts)


def _sums_side_by_side(x: jax.Array, spec: Sequence[Window]) -> jax.Array:
    """Sums over windows that lie side by side in all dimensions, in one pass."""
    lead = x.shape[: x.ndim - len(spec)]
    whole = [slice(w.out * w.kernel) for w in spec]
    parts = [size for w in spec for size in (w.out, w.kernel)]
    split = lax.reshape(x[(..., *whole)], (*lead, *parts))
    return jnp.sum(split, axis=tuple(range(len(lead) + 1, split.ndim, 2)))


def _repeated(grad: jax.Array, dim: int, spec: Sequence[Window]) -> jax.Array:
    """The gradient through sums side by side from `dim` on: each one in all of its window."""
    lead, tail = grad.shape[:dim], grad.shape[dim + len(spec) :]
    parts = [size for w in spec for size in (w.out, w.kernel)]
    inner = range(dim + len(parts), dim + len(parts) + len(tail))
    kept = [*range(dim), *range(dim, dim + len(parts), 2), *inner]
    wide = lax.broadcast_in_dim(grad, (*lead, *parts, *tail), kept)
    wide = lax.reshape(wide, (*lead, *(w.out * w.kernel for w in spec), *tail))
    beyond = [(0, w.size - w.out * w.kernel, 0) for w in spec]
    unmet = [*[(0, 0, 0)] * dim, *beyond, *[(0, 0, 0)] * len(tail)]
    return lax.pad(wide, jnp.zeros((), grad.dtype), unmet) if any(map(any, unmet)) else wide


def _window_gradient(grad: jax.Array, dim: int, w: Window) -> jax.Array:
    """The gradient through `window_sum`."""
    if _lie_side_by_side(w):
        return _repeated(grad, dim, [w])
    shape = (*grad.shape[:dim], w.size, *grad.shape[dim + 1 :])
    source = jax.ShapeDtypeStruct(shape, grad.dtype)
    return jax.linear_transpose(lambda x: window_sum(x, dim, w), source)(grad)[0]


def _transposed(
    function: Callable[[jax.Array], jax.Array], grad: jax.Array, like: jax.Array
) -> jax.Array:
    """The gradient through a linear `function` of an array shaped as `like`."""
    compute = dtypes.opmath(like.dtype)
    if like.size == 0 or grad.size == 0:
        return jnp.zeros(like.shape, like.dtype)
    source = jax.ShapeDtypeStruct(like.shape, compute)
    (result,) = jax.linear_transpose(function, source)(grad.astype(compute))
    return result.astype(like.dtype)


def _avg_pool(spatial: int) -> tuple[Callable[..., jax.Array], Callable[..., jax.Array]]:
    """The row functions, forward and backward, for `spatial` dimensions."""

    def forward(
        self: jax.Array,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> jax.Array:
        sizes = self.shape[self.ndim - spatial :]
        spec = windows(
            sizes, as_list(kernel_size), as_list(stride), as_list(padding), (1,), ceil_mode
        )
        counts = divisor(spec, count_include_pad, divisor_override)
        if self.size == 0:
            lead = self.shape[: self.ndim - spatial]
            return jnp.zeros(lead + tuple(w.out for w in spec), self.dtype)
        return _average(self.astype(dtypes.opmath(self.dtype)), spec, counts).astype(self.dtype)

    def backward(
        grad_output: jax.Array,
        self: jax.Array,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> jax.Array:
        sizes = self.shape[self.ndim - spatial :]
        spec = windows(
            sizes, as_list(kernel_size), as_list(stride), as_list(padding), (1,), ceil_mode
        )
        if self.size == 0:
            return jnp.zeros(self.shape, self.dtype)
        counts = divisor(spec, count_include_pad, divisor_override)
        grad = _divide(grad_output.astype(dtypes.opmath(self.dtype)), counts)
        if all(map(_lie_side_by_side, spec)):
            return _repeated(grad.astype(self.dtype), grad.ndim - spatial, spec)
        for i, w in enumerate(spec):
            grad = _window_gradient(grad, grad.ndim - spatial + i, w)
        return grad.astype(self.dtype)

    return forward, backward


def _bounds(size: int, out: int) -> tuple[np.ndarray, np.ndarray]:
    """First and last position (exclusive) of each adaptive window."""
    i = np.arange(out)
    return i * size // out, -(-(i + 1) * size // out)


def _gathered(x: jax.Array, dim: int, out: int) -> tuple[jax.Array, np.ndarray | None]:
    """`dim` split into (out, longest window); and, unless all are equal, which places count."""
    size = x.shape[dim]
    if size % out == 0:
        return x.reshape((*x.shape[:dim], out, size // out, *x.shape[dim + 1 :])), None
    start, end = _bounds(size, out)
    places = start[:, None] + np.arange((end - start).max())[None, :]
    valid = places < end[:, None]
    index = jnp.asarray(np.minimum(places, size - 1).reshape(-1).astype(np.int32))
    wide = x.at[(slice(None),) * dim + (index,)].get(mode="promise_in_bounds")
    wide = wide.reshape((*x.shape[:dim], *places.shape, *x.shape[dim + 1 :]))
    return wide, valid.reshape((*places.shape, *(1,) * (x.ndim - dim - 1)))


def _adaptive_average(x: jax.Array, sizes: Sequence[int]) -> jax.Array:
    """`(*P, *S)` -> `(*P, *sizes)`."""
    for i, out in enumerate(sizes):
        dim = x.ndim - len(sizes) + i
        start, end = _bounds(x.shape[dim], out)
        wide, valid = _gathered(x, dim, out)
        if valid is not None:
            wide = jnp.where(valid, wide, x.dtype.type(0))
        lane = (-1,) + (1,) * (x.ndim - dim - 1)
        x = _divide(jnp.sum(wide, axis=dim + 1), (end - start).reshape(lane))
    return x


def _adaptive_avg_pool(self: jax.Array, output_size: Sequence[int]) -> jax.Array:
    if self.size == 0 or 0 in output_size:
        shape = self.shape[: self.ndim - len(output_size)] + tuple(output_size)
        return jnp.zeros(shape, self.dtype)
    x = self.astype(dtypes.opmath(self.dtype))
    return _adaptive_average(x, output_size).astype(self.dtype)


def _adaptive_avg_pool_backward(spatial: int) -> Callable[..., jax.Array]:
    def backward(grad_output: jax.Array, self: jax.Array) -> jax.Array:
        sizes = grad_output.shape[grad_output.ndim - spatial :]
        return _transposed(lambda x: _adaptive_average(x, sizes), grad_output, self)

    return backward


def _adaptive_max_pool(self: jax.Array, output_size: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    """`(*P, *S)` -> maxima and flat indices `(*P, *output_size)`."""
    spatial = len(output_size)
    if self.size == 0 or 0 in output_size:
        shape = self.shape[: self.ndim - spatial] + tuple(output_size)
        return jnp.zeros(shape, self.dtype), jnp.zeros(shape, np.int64)
    x, index = self, jnp.broadcast_to(flat_index(self.shape, spatial), self.shape)
    for i in reversed(range(spatial)):
        dim = x.ndim - spatial + i
        wide, valid = _gathered(x, dim, output_size[i])
        places, _ = _gathered(index, dim, output_size[i])
        mask = None if valid is None else jnp.broadcast_to(jnp.asarray(valid), wide.shape)
        x, index = reduce_windows(wide, places, (dim + 1,), mask)
    return x, index.astype(np.int64)


def _adaptive_max_pool_backward(spatial: int) -> Callable[..., jax.Array]:
    def backward(grad_output: jax.Array, self: jax.Array, indices: jax.Array) -> jax.Array:
        grad = grad_output.astype(dtypes.opmath(grad_output.dtype))
        return scatter_gradient(grad, indices, self.shape, spatial).astype(self.dtype)

    return backward


_2D, _3D = _avg_pool(2), _avg_pool(3)

TABLE: tuple[Lowering, ...] = (
    native("aten::avg_pool2d", _2D[0]),
    native("aten::avg_pool2d_backward", _2D[1]),
    native("aten::avg_pool3d", _3D[0]),
    native("aten::avg_pool3d_backward", _3D[1]),
    native("aten::_adaptive_avg_pool2d", _adaptive_avg_pool),
    native("aten::_adaptive_avg_pool3d", _adaptive_avg_pool),
    native("aten::_adaptive_avg_pool2d_backward", _adaptive_avg_pool_backward(2)),
    native("aten::_adaptive_avg_pool3d_backward", _adaptive_avg_pool_backward(3)),
    native("aten::adaptive_max_pool2d", _adaptive_max_pool),
    native("aten::adaptive_max_pool3d", _adaptive_max_pool),
    native("aten::adaptive_max_pool2d_backward", _adaptive_max_pool_backward(2)),
    native("aten::adaptive_max_pool3d_backward", _adaptive_max_pool_backward(3)),
)
