# SPDX-License-Identifier: Apache-2.0
"""Wrappers that give a plain JAX function PyTorch's elementwise conventions.

Each wrapper promotes and broadcasts the operands, calls the function in the dtype
PyTorch computes in, and casts the outcome to PyTorch's result dtype. The families
(`unary`, `arithmetic`, `comparison`, `special`, `activations`) are then tables of
short functions that see equally shaped arrays of one dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import dtypes
from torchtpu_core.lowering.promotion import (
    Operand,
    cast,
    is_number,
    promote,
    result_type,
)
from torchtpu_core.lowering.table import Lowering, native

Elementwise = Callable[..., Any]


def elementwise(
    function: Elementwise, *, floating: bool = False, rounded: bool = False
) -> Elementwise:
    """`function` on promoted operands, computed in float32 for 16-bit floats.

    Args:
        function: takes arrays of one shape and dtype, returns one of the same.
        floating: integers and bools become the default float dtype.
        rounded: numbers are rounded to the result dtype first, see `round_numbers`.
    """

    @functools.wraps(function)
    def lowered(*operands: Operand) -> jax.Array:
        if rounded:
            operands = round_numbers(*operands)
        arrays, result = promote(*operands, floating=floating)
        return cast(function(*arrays), result)

    return lowered


def round_numbers(*operands: Operand) -> tuple[Operand, ...]:
    """Numbers rounded to the 16-bit result dtype of `operands`; all else as it is.

    CPU PyTorch rounds ``c`` in ``x + c`` to bfloat16 before it adds in float32, but
    keeps it in float32 for ``x * c``.
    """
    result = result_type(*operands)
    if dtypes.opmath(result) == result:
        return operands
    return tuple(cast(x, result) if is_number(x) else x for x in operands)


def selecting(function: Elementwise) -> Elementwise:
    """`function` on operands in the result dtype itself: it picks values, it does not round.

    Scalars are rounded to the result dtype first, as PyTorch does for comparisons.
    The outcome keeps the dtype that `function` gives it.
    """

    @functools.wraps(function)
    def lowered(*operands: Operand) -> jax.Array:
        result = result_type(*operands)
        return function(*jnp.broadcast_arrays(*[cast(x, result) for x in operands]))

    return lowered


def rows(
    pairs: Iterable[tuple[str, Elementwise]], wrap: Callable[[Elementwise], Elementwise]
) -> Iterator[Lowering]:
    """Rows of a uniform family: names without the ``aten::`` and their functions."""
    for name, function in pairs:
        yield native(f"aten::{name}", wrap(function))


def constant(value: float, like: jax.Array) -> jax.Array:
    """`value` as a 0-d constant of `like`'s dtype, so that it never widens the arithmetic."""
    return lax.full((), value, like.dtype)


def full_like(x: jax.Array, value: float) -> jax.Array:
    """`value` in the shape and dtype of `x`."""
    return lax.full(x.shape, value, x.dtype)


def is_bool(x: jax.Array) -> bool:
    """Whether `x` holds bools, on which XLA has no arithmetic."""
    return x.dtype == np.bool_


def isnan(x: jax.Array) -> jax.Array:
    """Elementwise NaN test that accepts every dtype (integers are never NaN)."""
    if not dtypes.is_inexact(x.dtype):
        return jnp.zeros(x.shape, np.bool_)
    return lax.ne(x, x)
