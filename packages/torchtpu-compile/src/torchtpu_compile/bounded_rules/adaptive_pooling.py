# SPDX-License-Identifier: Apache-2.0
"""Rules for adaptive pooling.

Window `i` of `out` covers the true places from ``i * size // out`` up to
``ceil((i + 1) * size / out)``. Where the image or the result is open each window is a mask over
the padded places, so what is reduced is `out` times the image: XLA makes one loop of mask and sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from torchtpu_core.lowering import dtypes
from torchtpu_core.lowering.pooling import flat_index, reduce_windows

from torchtpu_compile.bounded_call import Call, Rule
from torchtpu_compile.bounded_rules.pooling import renumbered, true_image
from torchtpu_compile.padded import Dim, Padded, is_padded, padded_size, true_size


def _windows(call: Call, x: Padded, d: int, out: Dim) -> tuple[jax.Array, jax.Array]:
    """For dimension `d`: `(out, places)`, whether a place is in a window; `(out,)` counts."""
    size, count = (call.sizes.true(true_size(dim)) for dim in (x.dims[d], out))
    i = lax.iota(np.int64, padded_size(out))
    start, end = i * size // count, -(-(i + 1) * size // count)
    place = lax.iota(np.int64, x.array.shape[d])
    return (place >= start[:, None]) & (place < end[:, None]), end - start


def _result_dims(call: Call, x: Padded, index: int | None, spatial: int) -> tuple[Dim, ...]:
    sizes = call.exprs(index)[-spatial:]
    return (*x.dims[: len(x.dims) - spatial], *(call.sizes.dim(e) for e in sizes))


def _is_open(spatial: int, *dims: Sequence[Dim]) -> bool:
    """Whether an image or the windows over it have an open size."""
    return any(is_padded(dim) for image in dims for dim in image[-spatial:])


def _average(call: Call, x: Padded, out: Sequence[Dim]) -> Callable[[jax.Array], jax.Array]:
    """The average of an array like that of `x`, one dimension after the other."""
    rank = len(x.dims)
    parts = [_windows(call, x, rank - len(out) + axis, n) for axis, n in enumerate(out)]

    def function(array: jax.Array) -> jax.Array:
        for axis, (inside, counts) in enumerate(parts):
            d = rank - len(out) + axis
            lane = (1,) * (rank - d - 1)
            wide = jnp.expand_dims(array, d)
            kept = jnp.where(inside.reshape(inside.shape + lane), wide, 0)
            array = jnp.sum(kept, axis=d + 1) / counts.astype(array.dtype).reshape((-1, *lane))
        return array

    return function


def _adaptive_average(spatial: int) -> Rule:
    def rule(call: Call) -> Any:
        x = call.args[0] = call.sizes.compact(call.args[0])
        dims = _result_dims(call, x, None, spatial)
        if not _is_open(spatial, x.dims, dims):
            return Padded(call.run(), dims)
        function = _average(call, x, dims[-spatial:])
        return Padded(function(x.array.astype(dtypes.opmath(x.array.dtype))), dims)

    return rule


def _adaptive_average_backward(spatial: int) -> Rule:
    def rule(call: Call) -> Any:
        grad, x = (call.sizes.compact(a) for a in call.args[:2])
        grad = call.sizes.filled(grad, 0)
        call.args[:2] = [grad, x]
        if not _is_open(spatial, x.dims, grad.dims):
            return Padded(call.run(), x.dims)
        compute = dtypes.opmath(x.array.dtype)
        function = _average(call, x, grad.dims[-spatial:])
        source = jax.ShapeDtypeStruct(x.array.shape, compute)
        (result,) = jax.linear_transpose(function, source)(grad.array.astype(compute))
        return Padded(result, x.dims)

    return rule


def _adaptive_maximum(spatial: int) -> Rule:
    def rule(call: Call) -> Any:
        x = call.args[0] = call.sizes.compact(call.args[0])
        dims = _result_dims(call, x, 0, spatial)
        if not _is_open(spatial, x.dims, dims):
            return [Padded(v, dims) for v in call.run()]
        rank, shape = len(x.dims), x.array.shape
        values, index = x.array, jnp.broadcast_to(flat_index(shape, spatial), shape)
        for d in reversed(range(rank - spatial, rank)):
            inside, _ = _windows(call, x, d, dims[d])
            wide = (*values.shape[:d], inside.shape[0], *values.shape[d:])
            valid = jnp.broadcast_to(inside.reshape(inside.shape + (1,) * (rank - d - 1)), wide)
            values, index = reduce_windows(
                jnp.broadcast_to(jnp.expand_dims(values, d), wide),
                jnp.broadcast_to(jnp.expand_dims(index, d), wide),
                (d + 1,),
                valid,
            )
        image = true_image(x, spatial)
        places = renumbered(call, index.astype(np.int64), image, shape[-spatial:], to_true=True)
        return [Padded(values, dims), Padded(places, dims)]

    return rule


def _adaptive_maximum_backward(spatial: int) -> Rule:
    def rule(call: Call) -> Any:
        grad, x, index = (call.sizes.compact(a) for a in call.args[:3])
        index = call.sizes.filled(index, 0)
        call.args[:3] = [call.sizes.filled(grad, 0), x, index]
        if _is_open(spatial, x.dims):
            room = x.array.shape[-spatial:]
            places = renumbered(call, index.array, true_image(x, spatial), room, to_true=False)
            call.args[2] = Padded(places, index.dims)
        return Padded(call.run(), x.dims)

    return rule


_FAMILIES: Mapping[str, Callable[[int], Rule]] = {
    "_adaptive_avg_pool{}d": _adaptive_average,
    "_adaptive_avg_pool{}d_backward": _adaptive_average_backward,
    "adaptive_max_pool{}d": _adaptive_maximum,
    "adaptive_max_pool{}d_backward": _adaptive_maximum_backward,
}

RULES: Mapping[str, Rule] = {
    f"aten::{name.format(spatial)}": make(spatial)
    for name, make in _FAMILIES.items()
    for spatial in (2, 3)
}
