# SPDX-License-Identifier: Apache-2.0
"""What rules share: dimension numbers, fills, refusals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import sympy
from torchtpu_core.lowering.promotion import Scalar

from torchtpu_compile.bounded_call import Call
from torchtpu_compile.errors import describe
from torchtpu_compile.padded import Padded, is_padded
from torchtpu_compile.symbols import Unbounded


def refuse(call: Call, why: str) -> Unbounded:
    """The reason to run a graph at its true sizes."""
    return Unbounded(f"{describe(call.node)} {why}")


def has_argument(call: Call, name: str) -> bool:
    """Whether an op's schema has an argument."""
    return any(a.name == name for a in call.node.target._schema.arguments)  # type: ignore[union-attr]


def number(call: Call, value: Any, dtype: Any) -> jax.Array:
    """A number of the graph or of the call as an array of no dimensions."""
    if isinstance(value, Scalar):
        return value.to(np.dtype(dtype))
    if isinstance(value, sympy.Expr):
        return call.sizes.true(value).astype(dtype)
    return jnp.asarray(np.asarray(value).astype(dtype))


def dim_of(x: Padded, dim: int) -> int:
    """A dimension's number, counted from the front."""
    return dim + len(x.dims) if dim < 0 else dim


def dims_of(x: Padded, dims: Any) -> list[int]:
    """Numbers of the listed dimensions; None or an empty list: all."""
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return list(range(len(x.dims)))
    return [dim_of(x, d) for d in ([dims] if isinstance(dims, int) else dims)]


def require_plain(call: Call, x: Padded, dims: Iterable[int]) -> None:
    """Refuse padding along `dims`."""
    if any(is_padded(x.dims[d]) for d in dims):
        raise refuse(call, "would see the padding of a dimension it works along")


def lowest(dtype: np.dtype) -> Any:
    """A value that no element is below."""
    if jnp.issubdtype(dtype, jnp.floating):
        return -jnp.inf
    return False if dtype == np.bool_ else jnp.iinfo(dtype).min


def highest(dtype: np.dtype) -> Any:
    """A value that no element is above."""
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.inf
    return True if dtype == np.bool_ else jnp.iinfo(dtype).max


def behind_all(dtype: np.dtype) -> Any:
    """A value that sorts behind every element, upwards."""
    return jnp.nan if jnp.issubdtype(dtype, jnp.floating) else highest(dtype)


def zeroed(call: Call, *names: str) -> None:
    """Put zeros in all padding of the named arguments."""
    for name in names:
        value = call.arg(name)
        if isinstance(value, Padded):
            call.set(name, call.sizes.filled(value, 0))


def moved(call: Call, x: Padded, dim: int, start: jax.Array, room: int) -> jax.Array:
    """`x` from a run-time `start` on along `dim`, `room` long; what lies beyond is unspecified."""
    widths = [(0, 0)] * x.array.ndim
    widths[dim] = (0, room)
    return jax.lax.dynamic_slice_in_dim(jnp.pad(x.array, widths), start, room, dim)


def fitted(array: jax.Array, shape: Sequence[int]) -> jax.Array:
    """The front part of an array, continued by zeros where `shape` is larger."""
    front = array[tuple(slice(0, n) for n in shape)]
    widths = [(0, n - m) for n, m in zip(shape, front.shape, strict=True)]
    return jnp.pad(front, widths) if any(w for _, w in widths) else front
