# SPDX-License-Identifier: Apache-2.0
"""Maximum pooling with indices and its backward.

Pooling is separable: one dimension after the other, the last first, each a fold over
the kernel's positions as strided slices that XLA fuses into one loop. An index is
flat over the spatial dimensions of the input; as in PyTorch the first maximum wins,
and the last NaN wins over everything.

Legend: P leading dimensions (batch and channels, or channels alone), S spatial.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import dtypes, mxu
from torchtpu_core.lowering.extrema import amax, worst
from torchtpu_core.lowering.table import Lowering, native
from torchtpu_core.xla_tpu import lowering


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Pooling along one dimension of `size` values into `out` windows."""

    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    out: int

    @property
    def reach(self) -> int:
        """How many values one window spans."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def is_whole(self) -> bool:
        """Whether the only window is the whole dimension."""
        return self.out == 1 and self.padding == 0 and self.kernel == self.size


def windows(
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> list[Window]:
    """One `Window` per spatial dimension; a single number serves all, no stride is the kernel."""
    count = len(sizes)

    def full(values: Sequence[int]) -> Sequence[int]:
        return list(values) * count if len(values) == 1 else values

    kernel = full(kernel)
    stride = full(stride) if stride else kernel
    rows = zip(sizes, kernel, stride, full(padding), full(dilation), strict=True)
    result = []
    for n, k, s, p, d in rows:
        out = (n + 2 * p - d * (k - 1) - 1 + (s - 1 if ceil_mode else 0)) // s + 1
        if ceil_mode and (out - 1) * s >= n + p:
            out -= 1
        result.append(Window(size=n, kernel=k, stride=s, padding=p, dilation=d, out=out))
    return result


def padded(x: jax.Array, dim: int, w: Window, fill: jax.Array) -> jax.Array:
    """`x` with `fill` around it so that every window of `dim` lies inside."""
    after = (w.out - 1) * w.stride + w.reach - w.size - w.padding
    config = [(0, 0, 0)] * x.ndim
    config[dim] = (w.padding, max(after, 0), 0)
    return lax.pad(x, fill, config)


def tap(x: jax.Array, dim: int, w: Window, position: int) -> jax.Array:
    """From a `padded` value: what kernel `position` meets in each window of `dim`."""
    start = position * w.dilation
    stop = start + (w.out - 1) * w.stride + 1
    return lax.slice_in_dim(x, start, stop, w.stride, dim)


def lowest(dtype: np.dtype) -> jax.Array:
    """The value below all others of `dtype`."""
    return jnp.asarray(worst(dtype, largest=True))


def _is_nan(x: jax.Array) -> jax.Array:
    return x != x


def reduce_windows(
    values: jax.Array, index: jax.Array, axes: tuple[int, ...], valid: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Maximum over `axes` and its index by PyTorch's rules; `valid` says what counts."""
    if valid is not None:
        values = jnp.where(valid, values, lowest(values.dtype))
    best = amax(values, axes, keepdim=True)
    usable = values == best
    if valid is not None:
        usable &= valid
    big = jnp.asarray(jnp.iinfo(index.dtype).max, index.dtype)
    chosen = jnp.min(jnp.where(usable, index, big), axis=axes)
    if dtypes.is_floating(values.dtype):
        nan = jnp.where(_is_nan(values), index, index.dtype.type(-1))
        last_nan = jnp.max(nan, axis=axes)
        chosen = jnp.where(last_nan >= 0, last_nan, chosen)
    return jnp.squeeze(best, axes), chosen


def _fold(values: jax.Array, index: jax.Array, dim: int, w: Window) -> tuple[jax.Array, jax.Array]:
    """Pool one dimension by running over the kernel's positions."""
    values = padded(values, dim, w, lowest(values.dtype))
    index = padded(index, dim, w, jnp.zeros((), index.dtype))
    # The first position inside the input, by window: it is the index if all are -inf.
    offsets = np.maximum(w.padding - np.arange(w.out) * w.stride, 0)
    first = -(-offsets // w.dilation)
    lane = [1] * values.ndim
    lane[dim] = w.out
    best, chosen = tap(values, dim, w, 0), tap(index, dim, w, 0)
    for position in range(1, w.kernel):
        value, place = tap(values, dim, w, position), tap(index, dim, w, position)
        better = value > best
        if dtypes.is_floating(values.dtype):
            better |= _is_nan(value)
        if (first == position).any():
            better |= jnp.asarray((first == position).reshape(lane))
        best, chosen = jnp.where(better, value, best), jnp.where(better, place, chosen)
    return best, chosen


def flat_index(shape: Sequence[int], spatial: int) -> jax.Array:
    """`(1, ..., *S)`: each position's flat index over the last `spatial` dimensions, int32."""
    sizes = tuple(shape[len(shape) - spatial :])
    flat = lax.iota(np.int32, math.prod(sizes)).reshape(sizes)
    return flat.reshape((1,) * (len(shape) - spatial) + sizes)


def max_pool(x: jax.Array, spec: Sequence[Window]) -> tuple[jax.Array, jax.Array]:
    """`(*P, *S)` -> pooled values and flat indices (int32), one `Window` per spatial dimension."""
    index = jnp.broadcast_to(flat_index(x.shape, len(spec)), x.shape)
    if x.size == 0:
        out = x.shape[: x.ndim - len(spec)] + tuple(w.out for w in spec)
        return jnp.zeros(out, x.dtype), jnp.zeros(out, np.int32)
    for i in reversed(range(len(spec))):
        dim = x.ndim - len(spec) + i
        if spec[i].is_whole and spec[i].kernel > 4:
            x, index = reduce_windows(x, index, (dim,))
            x, index = jnp.expand_dims(x, dim), jnp.expand_dims(index, dim)
        else:
            x, index = _fold(x, index, dim, spec[i])
    return x, index


def repeated(x: jax.Array, dim: int, times: int) -> jax.Array:
    """Each value along `dim`, `times` times in a row."""
    if times == 1:
        return x
    wide = jnp.expand_dims(x, dim + 1)
    shape = (*x.shape[: dim + 1], times, *x.shape[dim + 1 :])
    merged = (*x.shape[:dim], x.shape[dim] * times, *x.shape[dim + 1 :])
    return jnp.broadcast_to(wide, shape).reshape(merged)


def _spread(x: jax.Array, dim: int, w: Window, fill: int) -> jax.Array:
    """For each input position, the window it lies in; the windows do not overlap."""
    blocks = -(-(w.padding + w.size) // w.stride)
    config = [(0, 0, 0)] * x.ndim
    config[dim] = (0, blocks - w.out, 0)
    x = repeated(lax.pad(x, jnp.asarray(fill, x.dtype), config), dim, w.stride)
    return lax.slice_in_dim(x, w.padding, w.padding + w.size, 1, dim)


def max_pool_gradient(
    grad: jax.Array, index: jax.Array, shape: Sequence[int], spec: Sequence[Window]
) -> jax.Array:
    """`(*P, *out)` gradients and indices -> `(*P, *S)`: each goes to the position of its index.

    Windows that do not overlap need one comparison per position. Overlapping ones
    scatter: XLA:CPU takes a third of the time of comparing with each window.
    """
    if grad.size == 0 or any(w.reach > w.stride for w in spec):
        return scatter_gradient(grad, index, shape, len(spec))
    index = index.astype(np.int32)
    if lowering.target() is not None:  # windows with holes, which `_takes_xla` leaves
        # Otherwise XLA spreads the indices in the forward pass, to the size of the input.
        grad, index = lax.optimization_barrier((grad, index))
    for axis, w in enumerate(spec):
        dim = len(shape) - len(spec) + axis
        grad, index = _spread(grad, dim, w, 0), _spread(index, dim, w, -1)
    return jnp.where(index == flat_index(shape, len(spec)), grad, grad.dtype.type(0))


def _takes_xla(x: jax.Array, spec: Sequence[Window]) -> bool:
    """Whether a TPU pools by XLA's own operators, which know neither integers nor holes."""
    holes = any(w.dilation > 1 and w.kernel > 1 for w in spec)
    return mxu.lowers_for("tpu") and x.size > 0 and dtypes.is_floating(x.dtype) and not holes


def _selected_gradient(grad: jax.Array, x: jax.Array, spec: Sequence[Window]) -> jax.Array:
    """`max_pool_gradient` from the values `(*P, *S)` that were pooled, in their dtype.

    As one operator of XLA's (``select_and_scatter``), which a TPU does by windows and not element
    by element. In a window with NaN, some other position than the last NaN may have the gradient.
    """
    _, backward = jax.vjp(functools.partial(_maxima, spec=spec), x)
    found: jax.Array = backward(grad.astype(x.dtype))[0]
    return found


def _maxima(values: jax.Array, spec: Sequence[Window]) -> jax.Array:
    """The values of `max_pool` alone, of windows without holes, as XLA's own operator."""
    lead = values.ndim - len(spec)
    ends = [(w.out - 1) * w.stride + w.reach - w.size - w.padding for w in spec]
    return lax.reduce_window(
        values,
        np.array(-np.inf, values.dtype),  # known to JAX, which then knows a maximum
        lax.max,
        (1,) * lead + tuple(w.kernel for w in spec),
        (1,) * lead + tuple(w.stride for w in spec),
        [(0, 0)] * lead + [(w.padding, max(e, 0)) for w, e in zip(spec, ends, strict=True)],
    )


def scatter_gradient(
    grad: jax.Array, index: jax.Array, shape: Sequence[int], spatial: int
) -> jax.Array:
    """`(*P, *out)` summed at flat indices into zeros of `shape` `(*P, *S)`."""
    lead = len(shape) - spatial
    planes, places = math.prod(shape[:lead]), math.prod(shape[lead:])
    if grad.size == 0 or planes * places == 0:
        return jnp.zeros(tuple(shape), grad.dtype)
    g, i = grad.reshape((planes, -1)), index.reshape((planes, -1)).astype(np.int32)
    if g.shape[1] <= 4:
        here = lax.iota(np.int32, places)[None, :, None]
        hits = jnp.where(i[:, None, :] == here, g[:, None, :], g.dtype.type(0))
        return jnp.sum(hits, axis=2).reshape(tuple(shape))
    rows = lax.broadcasted_iota(np.int32, i.shape, 0)
    zeros = jnp.zeros((planes, places), g.dtype)
    return zeros.at[rows, i].add(g, mode="promise_in_bounds").reshape(tuple(shape))


def _max_pool_with_indices(
    spatial: int,
) -> tuple[Callable[..., tuple[jax.Array, jax.Array]], Callable[..., jax.Array]]:
    """The row functions, forward and backward, for `spatial` dimensions."""

    def forward(
        self: jax.Array,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> tuple[jax.Array, jax.Array]:
        sizes = self.shape[self.ndim - spatial :]
        spec = windows(
            sizes,
            as_list(kernel_size),
            as_list(stride),
            as_list(padding),
            as_list(dilation),
            ceil_mode,
        )
        values, index = max_pool(self, spec)
        if _takes_xla(self, spec):
            values = _maxima(self, spec)
        return values, index.astype(np.int64)

    def backward(
        grad_output: jax.Array,
        self: jax.Array,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
        indices: jax.Array,
    ) -> jax.Array:
        sizes = self.shape[self.ndim - spatial :]
        spec = windows(
            sizes,
            as_list(kernel_size),
            as_list(stride),
            as_list(padding),
            as_list(dilation),
            ceil_mode,
        )
        if _takes_xla(grad_output, spec):
            return _selected_gradient(grad_output, self, spec)
        grad = grad_output.astype(dtypes.opmath(grad_output.dtype))
        return max_pool_gradient(grad, indices, self.shape, spec).astype(self.dtype)

    return forward, backward


def as_list(values: Sequence[int] | int) -> list[int]:
    """A schema's ``int[2]`` may have a plain number as its default."""
    return [values] if isinstance(values, int) else list(values)


_2D, _3D = _max_pool_with_indices(2), _max_pool_with_indices(3)

TABLE: tuple[Lowering, ...] = (
    native("aten::max_pool2d_with_indices", _2D[0]),
    native("aten::max_pool2d_with_indices_backward", _2D[1]),
    native("aten::max_pool3d_with_indices", _3D[0]),
    native("aten::max_pool3d_with_indices_backward", _3D[1]),
)
