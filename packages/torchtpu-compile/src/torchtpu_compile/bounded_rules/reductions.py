# SPDX-License-Identifier: Apache-2.0
"""Rules for reductions: the identity goes into the padding first; means divide by true counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from torchtpu_core.lowering import dtypes
from torchtpu_core.lowering.promotion import cast

from torchtpu_compile.bounded_call import Call, Rule
from torchtpu_compile.bounded_rules.common import dims_of, has_argument, highest, lowest, refuse
from torchtpu_compile.padded import Padded, padded_size, true_size

Fill = Callable[[np.dtype], Any]


def reduced_dims(x: Padded, dims: list[int], keep: bool) -> tuple[Any, ...]:
    """The dimensions that are left."""
    return tuple(() if d in dims else dim for d, dim in enumerate(x.dims) if keep or d not in dims)


def _dims(call: Call, x: Padded) -> tuple[list[int], bool]:
    dim = call.arg("dim") if has_argument(call, "dim") else None
    keep = bool(call.arg("keepdim")) if has_argument(call, "keepdim") else False
    return dims_of(x, dim), keep


def _reduction(fill: Fill) -> Rule:
    def rule(call: Call) -> Any:
        x = call.args[0]
        dims, keep = _dims(call, x)
        call.args[0] = call.sizes.filled(x, fill(x.array.dtype), dims)
        values = call.run()
        left = reduced_dims(x, dims, keep)
        if isinstance(values, (list, tuple)):
            return [Padded(v, left) for v in values]
        return Padded(values, left)

    return rule


def _arg_reduction(fill: Fill) -> Rule:
    plain = _reduction(fill)

    def rule(call: Call) -> Any:
        x = call.args[0]
        if call.arg("dim") is not None or not x.padded_dims:
            call.args[0] = call.sizes.compact(x)
            return plain(call)
        flat = call.args[0] = call.sizes.flat(x)
        call.args[0] = call.sizes.filled(flat, fill(x.array.dtype))
        return Padded(jnp.reshape(call.run(), (1,) * len(call.exprs())), ((),) * len(call.exprs()))

    return rule


def count_of(call: Call, x: Padded, dims: list[int]) -> jax.Array:
    """How many elements count along `dims`."""
    total = jnp.ones((), np.int64)
    for d in dims:
        total = total * call.sizes.true(true_size(x.dims[d]))
    return total


def _mean(call: Call) -> Padded:
    x = call.args[0]
    dims, keep = _dims(call, x)
    expected = dtypes.to_numpy(call.node.meta["val"].dtype)
    masked = call.sizes.filled(x, 0, dims).array
    total = jnp.sum(cast(masked, dtypes.opmath(expected)), axis=tuple(dims), keepdims=keep)
    return Padded(total / count_of(call, x, dims).astype(total.dtype), reduced_dims(x, dims, keep))


def moments(
    call: Call, x: Padded, dims: list[int], correction: float
) -> tuple[jax.Array, jax.Array]:
    """Variance and mean along `dims`, which are kept, in float32 or float64."""
    array = cast(x.array, dtypes.opmath(x.array.dtype))
    count = count_of(call, x, dims).astype(array.dtype)
    ok = call.sizes.valid(x, dims)

    def total(values: jax.Array) -> jax.Array:
        kept = values if ok is None else jnp.where(ok, values, 0)
        return jnp.sum(kept, axis=tuple(dims), keepdims=True)

    mean = total(array) / count
    variance = total(jnp.square(array - mean)) / jnp.maximum(count - correction, 0)
    return variance, mean


def _variance(call: Call) -> Any:
    x = call.args[0]
    name = call.node.target._schema.name  # type: ignore[union-attr]
    if jnp.issubdtype(x.array.dtype, jnp.complexfloating):
        raise refuse(call, "is a variance of complex numbers")
    dims, keep = _dims(call, x)
    correction = call.arg("correction")
    values = moments(call, x, dims, 1.0 if correction is None else float(correction))
    left = reduced_dims(x, dims, keep)
    shape = [padded_size(d) for d in left]
    variance, mean = (v.reshape(shape) for v in values)
    if name.endswith("var_mean"):
        return [Padded(variance, left), Padded(mean, left)]
    return Padded(jnp.sqrt(variance) if name.endswith("std") else variance, left)


def _norm(call: Call) -> Any:
    """Zeros are neutral for a positive order only; a negative one looks for the smallest."""
    order = call.arg("ord")
    if not isinstance(order, (int, float)):
        raise refuse(call, "has an open order")
    return _reduction(_constant(np.inf if order < 0 else 0))(call)


def _constant(value: Any) -> Fill:
    return lambda dtype: value


_TABLE: tuple[tuple[Rule, tuple[str, ...]], ...] = (
    (
        _reduction(_constant(0)),
        (
            "sum",
            "sum.dim_IntList",
            "nansum",
            "any",
            "any.dim",
            "any.dims",
            "count_nonzero",
        ),
    ),
    (_norm, ("linalg_vector_norm",)),
    (_reduction(_constant(1)), ("prod", "prod.dim_int", "all", "all.dim", "all.dims")),
    (_reduction(lowest), ("amax", "max", "logsumexp")),
    (_reduction(highest), ("amin", "min")),
    (_arg_reduction(lowest), ("argmax", "max.dim")),
    (_arg_reduction(highest), ("argmin", "min.dim")),
    (_mean, ("mean", "mean.dim")),
    (_variance, ("var.correction", "var_mean.correction", "std.correction")),
)

RULES: Mapping[str, Rule] = {f"aten::{name}": rule for rule, names in _TABLE for name in names}
