# SPDX-License-Identifier: Apache-2.0
"""Rules for adaptive pooling.

Window `i` of `out` covers the true places from ``i * size // out`` up to
``ceil((i + 1) * size / out)``. Where the image or the result is open the program computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from torchtpu_core.lowering import dtypes
from torchtpu_core.lowering.pooling import flat_index

from torchtpu_compile.bounded_call import Call, Rule
from torchtpu_compile.bounded_rules.pooling import renumbered, true_image
from torchtpu_compile.bounded_rules.windows import Runs
from torchtpu_compile.padded import Dim, Padded, is_padded, padded_size, true_size


def _windows(call: Call, x: Padded, d: int, out: Dim) -> Runs:
    """The windows over dimension `d`."""
    size, count = (call.sizes.true(true_size(dim)) for dim in (x.dims[d], out))
    i = lax.iota(np.int64, padded_size(out))
    # Those behind the last true one are of its last place: no window is empty or outside.
    first = jnp.minimum(i * size // count, size - 1)
    last = jnp.minimum(-(-(i + 1) * size // count), size)
    return Runs(first, last, x.array.shape[d])


def _result_dims(call: Call, x: Padded, index: int | None, spatial: int) -> tuple[Dim, ...]:
    sizes = call.exprs(index)[-spatial:]
    return (*x.dims[: len(x.dims) - spatial], *(call.sizes.dim(e) for e in sizes))


def _is_open(spatial: int, *dims: Sequence[Dim]) -> bool:
    """Whether an image or the windows over it have an open size."""
    return any(is_padded(dim) for image in dims for dim in image[-spatial:])


def _parts(call: Call, x: Padded, out: Sequence[Dim]) -> Iterator[tuple[int, Runs, jax.Array]]:
    """Each spatial dimension with its windows and their weights in averages."""
    for d, count in enumerate(out, start=len(x.dims) - len(out)):
        runs = _windows(call, x, d, count)
        share = 1 / (runs.last - runs.first).astype(dtypes.opmath(x.array.dtype))
        yield d, runs, jnp.where(runs.inside(), share, 0)


def _adaptive_average(spatial: int) -> Rule:
    def rule(call: Call) -> Any:
        x = call.args[0] = call.sizes.compact(call.args[0])
        dims = _result_dims(call, x, None, spatial)
        if not _is_open(spatial, x.dims, dims):
            return Padded(call.run(), dims)
        value = call.sizes.filled(x, 0).array.astype(dtypes.opmath(x.array.dtype))
        for d, runs, weights in _parts(call, x, dims[-spatial:]):
            value = runs.sums(value, d, weights)
        return Padded(value, dims)

    return rule


def _adaptive_average_backward(spatial: int) -> Rule:
    def rule(call: Call) -> Any:
        grad, x = (call.sizes.compact(a) for a in call.args[:2])
        grad = call.sizes.filled(grad, 0)
        call.args[:2] = [grad, x]
        if not _is_open(spatial, x.dims, grad.dims):
            return Padded(call.run(), x.dims)
        value = grad.array.astype(dtypes.opmath(x.array.dtype))
        for d, runs, weights in _parts(call, x, grad.dims[-spatial:]):
            value = runs.turned().sums(value, d, weights.T)
        return Padded(value, x.dims)

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
            values, index = _windows(call, x, d, dims[d]).maxima(values, index, d)
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
