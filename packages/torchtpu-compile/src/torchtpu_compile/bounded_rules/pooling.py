# SPDX-License-Identifier: Apache-2.0
"""Rules for pooling.

Open batches and channels are untouched by it. In open images the padding holds what no
window can see, the lowest value or zero; a window's sum is divided by how many true
elements it has; positions of maxima are counted in the true image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torchtpu_compile.bounded import Call, Rule
from torchtpu_compile.bounded_rules.common import lowest, refuse, require_plain
from torchtpu_compile.padded import Padded, is_padded, padded_size, true_size


def _image(x: Padded, spatial: int) -> range:
    """The dimensions that are pooled."""
    return range(len(x.dims) - spatial, len(x.dims))


def _is_open(x: Padded, spatial: int) -> bool:
    return any(is_padded(x.dims[d]) for d in _image(x, spatial))


def _pooled(call: Call, x: Padded, index: int | None, spatial: int) -> tuple[Any, ...]:
    """The dimensions of a result: those of `x` with pooled images."""
    sizes = call.exprs(index)[-spatial:]
    return (*x.dims[: len(x.dims) - spatial], *(call.sizes.dim(e) for e in sizes))


def _refuse_ceil(call: Call) -> None:
    if call.arg("ceil_mode"):
        raise refuse(call, "rounds the size of an open image up")


def _renumbered(call: Call, index: jax.Array, image: Padded, spatial: int, to_true: bool) -> Any:
    """Flat positions in the padded image as such in the true one, or the other way."""
    dims = [image.dims[d] for d in _image(image, spatial)]
    padded = [jnp.asarray(padded_size(d), np.int64) for d in dims]
    true = [call.sizes.true(true_size(d)) for d in dims]
    source, target = (padded, true) if to_true else (true, padded)
    result, step = jnp.zeros_like(index), jnp.ones((), np.int64)
    for size, new in zip(reversed(source), reversed(target), strict=True):
        result = result + (index % size) * step
        index, step = index // size, step * new
    return result


def _max_pool(spatial: int) -> Rule:
    def rule(call: Call) -> Any:
        x = call.args[0] = call.sizes.compact(call.args[0])
        is_open = _is_open(x, spatial)
        if is_open:
            _refuse_ceil(call)
            call.args[0] = call.sizes.filled(x, lowest(x.array.dtype), _image(x, spatial))
        values, index = call.run()
        dims = _pooled(call, x, 0, spatial)
        if is_open:
            index = _renumbered(call, index, x, spatial, to_true=True)
        return [Padded(values, dims), Padded(index, dims)]

    return rule


def _max_pool_backward(spatial: int) -> Rule:
    def rule(call: Call) -> Any:
        for name in ("grad_output", "self", "indices"):
            call.set(name, call.sizes.compact(call.arg(name)))
        grad, x, index = (call.arg(n) for n in ("grad_output", "self", "indices"))
        call.set("grad_output", call.sizes.filled(grad, 0))
        if _is_open(x, spatial):
            _refuse_ceil(call)
            index = call.sizes.filled(index, 0)
            places = _renumbered(call, index.array, x, spatial, to_true=False)
            index = Padded(places, index.dims)
        call.set("indices", index)
        return Padded(call.run(), x.dims)

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
        if not _is_open(x, spatial):
            return Padded(call.run(), _pooled(call, x, None, spatial))
        _require_float(call, x)
        call.args[0] = call.sizes.filled(x, 0, _image(x, spatial))
        dims = _pooled(call, x, None, spatial)
        counts = _counts(call, x, [padded_size(d) for d in dims[-spatial:]], spatial)
        call.set("divisor_override", 1)
        total = call.run()
        return Padded(total / counts.astype(total.dtype), dims)

    return rule


def _average_pool_backward(spatial: int) -> Rule:
    def rule(call: Call) -> Any:
        for name in ("grad_output", "self"):
            call.set(name, call.sizes.compact(call.arg(name)))
        grad, x = call.arg("grad_output"), call.arg("self")
        grad = call.sizes.filled(grad, 0)
        if _is_open(x, spatial):
            _require_float(call, x)
            out = grad.array.shape[-spatial:]
            counts = _counts(call, x, out, spatial).astype(grad.array.dtype)
            grad = Padded(grad.array / counts, grad.dims)
            call.set("divisor_override", 1)
        call.set("grad_output", grad)
        return Padded(call.run(), x.dims)

    return rule


def _require_float(call: Call, x: Padded) -> None:
    _refuse_ceil(call)
    if not jnp.issubdtype(x.array.dtype, jnp.floating):
        raise refuse(call, "averages whole numbers of an open image")


def _whole_image(spatial: int) -> Rule:
    """An op whose windows depend on the image's size, which must therefore not be open."""

    def rule(call: Call) -> Any:
        x = call.args[0] = call.sizes.compact(call.args[0])
        require_plain(call, x, _image(x, spatial))
        values = call.run()
        if isinstance(values, (list, tuple)):
            return [Padded(v, _pooled(call, x, i, spatial)) for i, v in enumerate(values)]
        return Padded(values, _pooled(call, x, None, spatial))

    return rule


def _whole_image_backward(spatial: int) -> Rule:
    def rule(call: Call) -> Any:
        for i, value in enumerate(call.args):
            if isinstance(value, Padded):
                call.args[i] = call.sizes.compact(value)
        grad, x = call.args[:2]
        require_plain(call, x, _image(x, spatial))
        call.args[0] = call.sizes.filled(grad, 0)
        return Padded(call.run(), x.dims)

    return rule


_FAMILIES: Mapping[str, Callable[[int], Rule]] = {
    "max_pool{}d_with_indices": _max_pool,
    "max_pool{}d_with_indices_backward": _max_pool_backward,
    "avg_pool{}d": _average_pool,
    "avg_pool{}d_backward": _average_pool_backward,
    "_adaptive_avg_pool{}d": _whole_image,
    "_adaptive_avg_pool{}d_backward": _whole_image_backward,
    "adaptive_max_pool{}d": _whole_image,
    "adaptive_max_pool{}d_backward": _whole_image_backward,
}

RULES: Mapping[str, Rule] = {
    f"aten::{name.format(spatial)}": make(spatial)
    for name, make in _FAMILIES.items()
    for spatial in (2, 3)
}
