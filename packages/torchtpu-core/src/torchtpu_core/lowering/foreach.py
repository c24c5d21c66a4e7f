# SPDX-License-Identifier: Apache-2.0
"""The ``_foreach_*`` families: one op for a whole list of tensors.

Every row applies a lowering of a single tensor to each element, and to each by itself:
`torchtpu_core.runtime.list_parts` divides lists. The in-place overloads follow from these
by the recorder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torchtpu_core.lowering import (
    arithmetic,
    comparison,
    copies,
    division,
    dtypes,
    matmul,
    special,
    unary,
)
from torchtpu_core.lowering.extrema import amax
from torchtpu_core.lowering.norms import sum_of_powers, vector_norm
from torchtpu_core.lowering.promotion import Operand, cast
from torchtpu_core.lowering.table import Lowering, native

Single = Callable[..., jax.Array]
Tensors = Sequence[jax.Array]


def _mapped(single: Single) -> Callable[[Tensors], list[jax.Array]]:
    return lambda self: [single(x) for x in self]


def _with_list(single: Single) -> Callable[..., list[jax.Array]]:
    """Each tensor with its own second operand: another tensor or a number."""
    return lambda self, other: [single(x, y) for x, y in zip(self, other, strict=True)]


def _with_one(single: Single) -> Callable[..., list[jax.Array]]:
    """Each tensor with the same second operand."""
    return lambda self, other: [single(x, other) for x in self]


def _list_with_alpha(single: Single) -> Callable[..., list[jax.Array]]:
    def lowered(self: Tensors, other: Tensors, *, alpha: Operand = 1) -> list[jax.Array]:
        return [single(x, y, alpha) for x, y in zip(self, other, strict=True)]

    return lowered


def _tensor_with_alpha(single: Single) -> Callable[..., list[jax.Array]]:
    def lowered(self: Tensors, other: Operand, *, alpha: Operand = 1) -> list[jax.Array]:
        return [single(x, other, alpha) for x in self]

    return lowered


def _ternary_scalar(single: Single) -> Callable[..., list[jax.Array]]:
    def lowered(
        self: Tensors, tensor1: Tensors, tensor2: Tensors, value: Operand = 1
    ) -> list[jax.Array]:
        triples = zip(self, tensor1, tensor2, strict=True)
        return [single(x, a, b, value=value) for x, a, b in triples]

    return lowered


def _ternary_list(single: Single) -> Callable[..., list[jax.Array]]:
    def lowered(
        self: Tensors, tensor1: Tensors, tensor2: Tensors, scalars: Sequence[Operand]
    ) -> list[jax.Array]:
        entries = zip(self, tensor1, tensor2, scalars, strict=True)
        return [single(x, a, b, value=value) for x, a, b, value in entries]

    return lowered


def _ternary_tensor(single: Single) -> Callable[..., list[jax.Array]]:
    """The factors come as one 1-d tensor, an element for each tensor of the list."""

    def lowered(
        self: Tensors, tensor1: Tensors, tensor2: Tensors, scalars: jax.Array
    ) -> list[jax.Array]:
        values = [cast(scalars[i], x.dtype) for i, x in enumerate(self)]
        return _ternary_list(single)(self, tensor1, tensor2, values)

    return lowered


def _lerp_each(self: Tensors, tensors1: Tensors, weights: Sequence[Operand]) -> list[jax.Array]:
    triples = zip(self, tensors1, weights, strict=True)
    return [arithmetic.lerp(x, end, weight) for x, end, weight in triples]


def _lerp_one(self: Tensors, tensors1: Tensors, weight: Operand) -> list[jax.Array]:
    return _lerp_each(self, tensors1, [weight] * len(self))


def _pow_scalar(self: Tensors, exponent: Any) -> list[jax.Array]:
    return [arithmetic.pow_static(x, exponent) for x in self]


def _pow_list(self: Tensors, exponent: Sequence[Any]) -> list[jax.Array]:
    pairs = zip(self, exponent, strict=True)
    return [arithmetic.pow_static(x, e) for x, e in pairs]


def _pow_of_scalar(self: Operand, exponent: Tensors) -> list[jax.Array]:
    return [arithmetic.power(self, e) for e in exponent]


def _norm(self: Tensors, ord: float = 2, dtype: torch.dtype | None = None) -> list[jax.Array]:
    return [vector_norm(x, ord, dtype=dtype) for x in self]


def _power_sum(self: Tensors, ord: float = 2, dtype: torch.dtype | None = None) -> list[jax.Array]:
    """``sum(abs(x) ** ord)`` of each tensor, real."""
    results = []
    for x in self:
        wanted = x.dtype if dtype is None else dtypes.to_numpy(dtype)
        size = lax.abs(cast(x, dtypes.opmath(wanted)))
        total = sum_of_powers(size, tuple(range(x.ndim)), float(ord))
        results.append(total if dtypes.is_complex(wanted) else cast(total, wanted))
    return results


def _maximum_of(self: Tensors) -> list[jax.Array]:
    return [amax(x) for x in self]


def _copy(self: Tensors, src: Tensors, non_blocking: bool = False) -> list[jax.Array]:
    return [copies.copy(x, y) for x, y in zip(self, src, strict=True)]


def _clone(self: Tensors) -> list[jax.Array]:
    return list(self)


def _zero(self: Tensors) -> list[jax.Array]:
    return [jnp.zeros(x.shape, x.dtype) for x in self]


def _mm(self: Tensors, mat2: Tensors) -> list[jax.Array]:
    return [matmul.mm(x, y) for x, y in zip(self, mat2, strict=True)]


_UNARY = (
    *("abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1"),
    *("floor", "frac", "lgamma", "log", "log10", "log1p", "log2", "neg", "reciprocal", "round"),
    *("rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
)

_BINARY: tuple[tuple[str, Single], ...] = (
    ("mul", arithmetic.mul),
    ("div", division.div),
    ("clamp_max", comparison.minimum),
    ("clamp_min", comparison.maximum),
    ("maximum", comparison.maximum),
    ("minimum", comparison.minimum),
    ("add", arithmetic.add),
    ("sub", arithmetic.sub),
)

_TERNARY: tuple[tuple[str, Single], ...] = (
    ("addcmul", arithmetic.addcmul),
    ("addcdiv", arithmetic.addcdiv),
)


def _unary_rows() -> Iterator[Lowering]:
    single = {row.overload: row.function for row in (*unary.TABLE, *special.TABLE)}
    for name in _UNARY:
        function = single[f"aten::{name}"]
        assert function is not None
        yield native(f"aten::_foreach_{name}", _mapped(function))


def _binary_rows() -> Iterator[Lowering]:
    for name, single in _BINARY:
        prefix = f"aten::_foreach_{name}"
        scaled = name in ("add", "sub")
        yield native(f"{prefix}.Scalar", _with_one(single))
        yield native(f"{prefix}.ScalarList", _with_list(single))
        yield native(f"{prefix}.List", (_list_with_alpha if scaled else _with_list)(single))
    for name, single in (("mul", arithmetic.mul), ("div", division.div)):
        yield native(f"aten::_foreach_{name}.Tensor", _with_one(single))
    yield native("aten::_foreach_add.Tensor", _tensor_with_alpha(arithmetic.add))


def _ternary_rows() -> Iterator[Lowering]:
    for name, single in _TERNARY:
        prefix = f"aten::_foreach_{name}"
        yield native(f"{prefix}.Scalar", _ternary_scalar(single))
        yield native(f"{prefix}.ScalarList", _ternary_list(single))
        yield native(f"{prefix}.Tensor", _ternary_tensor(single))


TABLE: tuple[Lowering, ...] = (
    *_unary_rows(),
    *_binary_rows(),
    *_ternary_rows(),
    native("aten::_foreach_lerp.List", _lerp_each),
    native("aten::_foreach_lerp.ScalarList", _lerp_each),
    native("aten::_foreach_lerp.Scalar", _lerp_one),
    native("aten::_foreach_pow.List", _with_list(arithmetic.power)),
    native("aten::_foreach_pow.Scalar", _pow_scalar, static=("exponent",)),
    native("aten::_foreach_pow.ScalarList", _pow_list, static=("exponent",)),
    native("aten::_foreach_pow.ScalarAndTensor", _pow_of_scalar),
    native("aten::_foreach_norm.Scalar", _norm, static=("ord",)),
    native("aten::_foreach_powsum.Scalar", _power_sum, static=("ord",)),
    native("aten::_foreach_max", _maximum_of),
    native("aten::_foreach_copy", _copy),
    native("aten::_foreach_clone", _clone),
    native("aten::_foreach_zero", _zero),
    native("aten::_foreach_mm", _mm),
)
