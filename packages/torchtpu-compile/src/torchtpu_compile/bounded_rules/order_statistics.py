# SPDX-License-Identifier: Apache-2.0
"""Rules for values by rank, and for places in a sorted order.

What counts is told apart from padding by true counts: padding ranks behind everything,
and a place found behind the last true element is that of the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from torchtpu_core.lowering import dtypes, random
from torchtpu_core.lowering.order_statistics import by_rank, most_frequent

from torchtpu_compile.bounded_call import Call, Rule
from torchtpu_compile.bounded_rules.common import (
    behind_all,
    dim_of,
    has_argument,
    highest,
    lowest,
    refuse,
)
from torchtpu_compile.bounded_rules.reductions import reduced_dims
from torchtpu_compile.padded import Padded, is_padded, padded_size, same_dim, true_size
from torchtpu_compile.symbols import expression


def _ranked(call: Call, x: Padded, dim: int, ranked: tuple[jax.Array, jax.Array]) -> list[Padded]:
    """Values and indices of one element along `dim`, kept if the op keeps it."""
    keep = bool(call.arg("keepdim"))
    left = reduced_dims(x, [dim], keep)
    return [Padded(jnp.expand_dims(v, dim) if keep else v, left) for v in ranked]


def _median_of(call: Call, x: Padded, dim: int, *, ignore_nan: bool) -> tuple[Any, Any]:
    last = call.sizes.true(true_size(x.dims[dim])).astype(np.int32) - 1
    rank: Any = last // 2
    if dtypes.is_floating(x.array.dtype):
        hidden = call.sizes.filled(x, 0, [dim]).array
        nans = jnp.sum(jnp.isnan(hidden), axis=dim, keepdims=True, dtype=np.int32)
        spared = jnp.maximum(last - nans, 0) // 2
        rank = spared if ignore_nan else jnp.where(nans > 0, last, rank)
    filled = call.sizes.filled(x, behind_all(x.array.dtype), [dim])
    return by_rank(filled.array, rank, dim)


def _median(*, ignore_nan: bool) -> Rule:
    def rule(call: Call) -> Any:
        x = call.args[0]
        if not has_argument(call, "dim"):
            flat = call.sizes.flat(x)
            return Padded(_median_of(call, flat, 0, ignore_nan=ignore_nan)[0], ())
        x = call.sizes.compact(x)
        dim = dim_of(x, call.arg("dim"))
        return _ranked(call, x, dim, _median_of(call, x, dim, ignore_nan=ignore_nan))

    return rule


def _kth_value(call: Call) -> Any:
    x = call.sizes.compact(call.args[0])
    dim = dim_of(x, call.arg("dim"))
    rank = call.sizes.true(expression(call.arg("k"))).astype(np.int32) - 1
    filled = call.sizes.filled(x, behind_all(x.array.dtype), [dim])
    return _ranked(call, x, dim, by_rank(filled.array, rank, dim))


def _mode(call: Call) -> Any:
    x = call.sizes.compact(call.args[0])
    dim = dim_of(x, call.arg("dim"))
    return _ranked(call, x, dim, most_frequent(x.array, dim, call.sizes.valid(x, [dim])))


def _places(call: Call, order: str, values: str) -> Padded:
    """Places of values in a sorted last dimension: at most its true size."""
    sequence, x = call.sizes.compact(call.arg(order)), call.arg(values)
    if len(sequence.dims) > 1:
        x = call.sizes.compact(x)
        if not all(map(same_dim, sequence.dims[:-1], x.dims[:-1])):
            raise refuse(call, "has batches whose padding differs")
    last = len(sequence.dims) - 1
    call.set(order, call.sizes.filled(sequence, highest(sequence.array.dtype), [last]))
    sorter = call.arg("sorter") if has_argument(call, "sorter") else None
    if sorter is not None:
        sorter = call.sizes.compact(sorter)
        own = lax.broadcasted_iota(np.int64, sorter.array.shape, last)
        ok = call.sizes.valid(sorter, range(len(sorter.dims)))
        here = sorter.array if ok is None else jnp.where(ok, sorter.array, own)
        call.set("sorter", Padded(here, sorter.dims))
    if isinstance(x, Padded):
        call.set(values, x)
    found = call.run()
    end = call.sizes.true(true_size(sequence.dims[last])).astype(found.dtype)
    return Padded(jnp.minimum(found, end), x.dims if isinstance(x, Padded) else ())


def _histogram(call: Call) -> Padded:
    # aten::histc(self, bins, min, max)
    x = call.args[0]
    dtype = x.array.dtype
    if dtype.itemsize < 4 and not dtypes.is_floating(dtype):
        raise refuse(call, "counts narrow whole numbers of open number")
    low, high = (jnp.asarray(_number(call.arg(name), dtype)) for name in ("min", "max"))
    from_data, one = low == high, np.array(1, dtype)
    low = jnp.where(from_data, jnp.min(call.sizes.filled(x, highest(dtype)).array), low)
    high = jnp.where(from_data, jnp.max(call.sizes.filled(x, lowest(dtype)).array), high)
    flat_range = low == high
    low, high = jnp.where(flat_range, low - one, low), jnp.where(flat_range, high + one, high)
    call.set("min", low)
    call.set("max", high)
    # NaN is in no bin, and neither is a whole number beside them.
    beside = jnp.where(high < highest(dtype), high + one, low - one)
    call.args[0] = call.sizes.filled(x, jnp.nan if dtypes.is_floating(dtype) else beside)
    return call.result(call.run())


def _number(value: Any, dtype: np.dtype) -> Any:
    return value.to(dtype) if hasattr(value, "to") else np.asarray(value, dtype)


def _multinomial(call: Call) -> Padded:
    # aten::multinomial(self, num_samples, replacement=False)
    x = call.sizes.compact(call.args[0])
    if not isinstance(call.args[1], int):
        raise refuse(call, "draws an open number of samples")
    last = len(x.dims) - 1
    if not call.arg("replacement") or call.args[1] == 1:  # a number for each category
        call.rng.place_at([true_size(d) for d in x.dims])  # type: ignore[union-attr]
    call.args[0] = call.sizes.filled(call.sizes.filled(x, 0, [last]), 1, range(last))
    return Padded(call.run(), (*x.dims[:last], call.sizes.dim(call.args[1])))


def _permutation(call: Call) -> Padded:
    """Positions ordered by random bits, as the row orders them at the true size."""
    dims = tuple(call.sizes.dim(e) for e in call.exprs())
    if not is_padded(dims[0]):
        return Padded(call.run(), dims)
    room, count = padded_size(dims[0]), call.sizes.true(call.exprs()[0])
    return Padded(random.permutation(room, call.rng, count=count), dims)  # type: ignore[arg-type]


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("aten::median", "aten::median.dim"), _median(ignore_nan=False)),
    **dict.fromkeys(("aten::nanmedian", "aten::nanmedian.dim"), _median(ignore_nan=True)),
    "aten::kthvalue": _kth_value,
    "aten::mode": _mode,
    **dict.fromkeys(
        ("aten::searchsorted.Tensor", "aten::searchsorted.Scalar"),
        lambda call: _places(call, "sorted_sequence", "self"),
    ),
    **dict.fromkeys(
        ("aten::bucketize.Tensor", "aten::bucketize.Scalar"),
        lambda call: _places(call, "boundaries", "self"),
    ),
    "aten::histc": _histogram,
    "aten::multinomial": _multinomial,
    "aten::randperm": _permutation,
}
