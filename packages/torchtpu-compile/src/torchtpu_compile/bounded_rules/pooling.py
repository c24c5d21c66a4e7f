# SPDX-License-Identifier: Apache-2.0
"""Rules for pooling.

Open batches and channels are untouched by it. In open images the padding holds what no
window can see, the lowest value or zero; a window's sum is divided by how many true
elements it has; positions of maxima are counted in the true image. Windows that reach
over the edge (``ceil_mode``) get more of the same padding. Inductor splits a pool of maxima
into two ops, whose places within a window know no image size, and flat places of these.
Adaptive windows, whose place follows the true size, are in `adaptive_pooling`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import sympy
from jax import lax

from torchtpu_compile.bounded_call import Call, Rule
from torchtpu_compile.bounded_rules.common import has_argument, lowest, refuse
from torchtpu_compile.padded import Padded, is_padded, padded_size, true_size
from torchtpu_compile.symbols import is_static


def _image(x: Padded, spatial: int) -> range:
    """The dimensions that are pooled."""
    return range(len(x.dims) - spatial, len(x.dims))


def _is_open(x: Padded, spatial: int) -> bool:
    return any(is_padded(x.dims[d]) for d in _image(x, spatial))


def _pooled(call: Call, x: Padded, index: int | None, spatial: int) -> tuple[Any, ...]:
    """The dimensions of a result: those of `x` with pooled images."""
    sizes = call.exprs(index)[-spatial:]
    return (*x.dims[: len(x.dims) - spatial], *(call.sizes.dim(e) for e in sizes))


def renumbered(
    call: Call, index: jax.Array, image: Sequence[sympy.Expr], room: Sequence[int], to_true: bool
) -> jax.Array:
    """Flat positions in an image of `room` places as such in the true one, or the other way."""
    padded = [jnp.asarray(n, np.int64) for n in room]
    true = [call.sizes.true(size) for size in image]
    source, target = (padded, true) if to_true else (true, padded)
    result, step = jnp.zeros_like(index), jnp.ones((), np.int64)
    for size, new in zip(reversed(source), reversed(target), strict=True):
        result = result + (index % size) * step
        index, step = index // size, step * new
    return result


def _window(call: Call, axis: int) -> tuple[int, int, int]:
    """Along one dimension: how far a window reaches, its stride, the padding before."""
    kernel, stride, padding = (_at(call.arg(n), axis) for n in ("kernel_size", "stride", "padding"))
    dilation = _at(call.arg("dilation"), axis) if has_argument(call, "dilation") else 1
    return dilation * (kernel - 1) + 1, stride or kernel, padding


def _room(call: Call, x: Padded, out: Sequence[int]) -> list[int]:
    """How large an image must be to hold `out` windows without reaching over the edge."""
    room = []
    for axis, (count, size) in enumerate(zip(out, x.array.shape[-len(out) :], strict=True)):
        reach, stride, padding = _window(call, axis)
        room.append(max(size, (count - 1) * stride + reach - 2 * padding))
    return room


def _floor_windows(call: Call, room: Sequence[int]) -> list[int]:
    """How many windows an image of `room` places holds."""
    out = []
    for axis, size in enumerate(room):
        reach, stride, padding = _window(call, axis)
        out.append((size + 2 * padding - reach) // stride + 1)
    return out


def _resized(array: jax.Array, sizes: Sequence[int], fill: Any = 0) -> jax.Array:
    """`array` with its last dimensions cut or continued by `fill` to `sizes`."""
    config = [(0, 0, 0)] * (array.ndim - len(sizes))
    config += [(0, n - m, 0) for n, m in zip(sizes, array.shape[-len(sizes) :], strict=True)]
    return lax.pad(array, jnp.asarray(fill, array.dtype), config)


def true_image(x: Padded, spatial: int) -> list[sympy.Expr]:
    """The true sizes of an image."""
    return [true_size(x.dims[d]) for d in _image(x, spatial)]


def _max_pool(spatial: int) -> Rule:
    def rule(call: Call) -> Any:
        values, index, room = _maxima(call, spatial)
        if room is not None:
            image = true_image(call.args[0], spatial)
            index = Padded(renumbered(call, index.array, image, room, to_true=True), index.dims)
        return [values, index]

    return rule


def _max_pool_with_offsets(call: Call) -> Any:
    """Maxima and their places within their windows."""
    return list(_maxima(call, len(call.arg("kernel_size")))[:2])


def _offsets_to_indices(call: Call) -> Any:
    """Places within windows as flat ones in the image, whose sizes are an argument."""
    offsets = call.args[0] = call.sizes.compact(call.args[0])
    image = [sympy.sympify(size) for size in call.arg("input_size")]
    index = call.run()
    if not all(map(is_static, image)):
        room = [padded_size(call.sizes.dim(size)) for size in image]
        index = renumbered(call, index, image, room, to_true=True)
    return Padded(index, offsets.dims)


def _maxima(call: Call, spatial: int) -> tuple[Padded, Padded, list[int] | None]:
    """Both results of a pool of maxima, and the size of an open image while it was pooled."""
    x = call.args[0] = call.sizes.compact(call.args[0])
    dims = _pooled(call, x, 0, spatial)
    if not _is_open(x, spatial):
        values, places = call.run()
        return Padded(values, dims), Padded(places, dims), None
    out = [padded_size(d) for d in dims[-spatial:]]
    room, fill = _room(call, x, out), lowest(x.array.dtype)
    image = call.sizes.filled(x, fill, _image(x, spatial))
    call.args[0] = Padded(_resized(image.array, room, fill), x.dims)
    call.set("ceil_mode", False)
    values, places = (_resized(v, out) for v in call.run())
    return Padded(values, dims), Padded(places, dims), room


def _max_pool_backward(spatial: int) -> Rule:
    def rule(call: Call) -> Any:
        for name in ("grad_output", "self", "indices"):
            call.set(name, call.sizes.compact(call.arg(name)))
        grad, x, index = (call.arg(n) for n in ("grad_output", "self", "indices"))
        grad = call.sizes.filled(grad, 0)
        call.set("grad_output", grad)
        if not _is_open(x, spatial):
            return Padded(call.run(), x.dims)
        room = _room(call, x, grad.array.shape[-spatial:])
        out = _floor_windows(call, room)
        index = call.sizes.filled(index, 0)
        places = renumbered(call, index.array, true_image(x, spatial), room, to_true=False)
        call.set("grad_output", Padded(_resized(grad.array, out), grad.dims))
        call.set("indices", Padded(_resized(places, out), index.dims))
        call.set("self", Padded(_resized(x.array, room), x.dims))
        call.set("ceil_mode", False)
        return Padded(_resized(call.run(), x.array.shape[-spatial:]), x.dims)

    return rule


def _counts(call: Call, x: Padded, out: Sequence[int], spatial: int) -> jax.Array:
    """How many elements each window of an open image has, as `divisor` of the row would say."""
    override = call.arg("divisor_override")
    if override is not None:
        return jnp.asarray(override, np.int64)
    result = jnp.ones((), np.int64)
    for axis, d in enumerate(_image(x, spatial)):
        kernel, stride, padding = (
            _at(call.arg(n), axis) for n in ("kernel_size", "stride", "padding")
        )
        size = call.sizes.true(true_size(x.dims[d]))
        start = jnp.arange(out[axis], dtype=np.int64) * (stride or kernel) - padding
        end = jnp.minimum(start + kernel, size + padding)
        if not call.arg("count_include_pad"):
            start, end = jnp.maximum(start, 0), jnp.minimum(end, size)
        shape = [-1 if i == axis else 1 for i in range(spatial)]
        result = result * jnp.maximum(end - start, 1).reshape(shape)
    return result


def _at(values: Any, axis: int) -> int:
    """The number of one dimension; a single one serves all, none is 0."""
    if isinstance(values, int):
        return values
    return 0 if not values else int(values[axis if len(values) > 1 else 0])


def _average_pool(spatial: int) -> Rule:
    def rule(call: Call) -> Any:
        x = call.args[0] = call.sizes.compact(call.args[0])
        dims = _pooled(call, x, None, spatial)
        if not _is_open(x, spatial):
            return Padded(call.run(), dims)
        _require_float(call, x)
        out = [padded_size(d) for d in dims[-spatial:]]
        counts = _counts(call, x, out, spatial)
        image = call.sizes.filled(x, 0, _image(x, spatial)).array
        call.args[0] = Padded(_resized(image, _room(call, x, out)), x.dims)
        call.set("divisor_override", 1)
        call.set("ceil_mode", False)
        total = _resized(call.run(), out)
        return Padded(total / counts.astype(total.dtype), dims)

    return rule


def _average_pool_backward(spatial: int) -> Rule:
    def rule(call: Call) -> Any:
        for name in ("grad_output", "self"):
            call.set(name, call.sizes.compact(call.arg(name)))
        grad, x = call.arg("grad_output"), call.arg("self")
        grad = call.sizes.filled(grad, 0)
        call.set("grad_output", grad)
        if not _is_open(x, spatial):
            return Padded(call.run(), x.dims)
        _require_float(call, x)
        windows = grad.array.shape[-spatial:]
        shares = grad.array / _counts(call, x, windows, spatial).astype(grad.array.dtype)
        room = _room(call, x, windows)
        call.set("grad_output", Padded(_resized(shares, _floor_windows(call, room)), grad.dims))
        call.set("self", Padded(_resized(x.array, room), x.dims))
        call.set("divisor_override", 1)
        call.set("ceil_mode", False)
        return Padded(_resized(call.run(), x.array.shape[-spatial:]), x.dims)

    return rule


def _require_float(call: Call, x: Padded) -> None:
    if not jnp.issubdtype(x.array.dtype, jnp.floating):
        raise refuse(call, "averages whole numbers of an open image")


_FAMILIES: Mapping[str, Callable[[int], Rule]] = {
    "max_pool{}d_with_indices": _max_pool,
    "max_pool{}d_with_indices_backward": _max_pool_backward,
    "avg_pool{}d": _average_pool,
    "avg_pool{}d_backward": _average_pool_backward,
}

RULES: Mapping[str, Rule] = {
    f"aten::{name.format(spatial)}": make(spatial)
    for name, make in _FAMILIES.items()
    for spatial in (2, 3)
} | {
    "prims::_low_memory_max_pool_with_offsets": _max_pool_with_offsets,
    "prims::_low_memory_max_pool_offsets_to_indices": _offsets_to_indices,
}
