# SPDX-License-Identifier: Apache-2.0
"""Run-time scalars and PyTorch's type promotion.

A Python number in an eager call is an operand of the program, never a constant,
so that a changing learning rate compiles nothing. Inside a lowering it is a
`Scalar`; in a compiled graph it may also be a plain Python number. Every helper
here takes arrays, `Scalar` objects and Python numbers alike.

Reference: PyTorch's "Tensor Attributes" documentation, section type promotion:
operands fall in three classes (dimensioned tensors, 0-d tensors, numbers), and a
lower class decides the result dtype only if its category (bool, integral, float,
complex) is higher.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu_core.lowering import dtypes

#: uint32 words that carry one scalar: low and high half of its 64-bit pattern
#: (int64 or float64), then its float32 pattern.
SCALAR_WORDS = 3


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number whose value is known only when the program runs.

    Attributes:
        kind: ``bool``, ``int`` or ``float`` (a complex number is a constant).
        words: `(SCALAR_WORDS,)` uint32, see `SCALAR_WORDS`.
        dtype: the torch dtype if it came from a 0-d CPU tensor, None if it was a
            Python number.
        single: its float32, where whoever made the scalar has taken it already, once for
            all who use it.
    """

    kind: type
    words: jax.Array
    dtype: torch.dtype | None = None
    single: jax.Array | None = None

    def to(self, dtype: np.dtype) -> jax.Array:
        """The scalar as a 0-d array of `dtype`, converted as PyTorch converts numbers."""
        dtype = np.dtype(dtype)
        if dtype == np.bool_:
            return self._exact() != 0
        if dtypes.opmath(dtype) != np.float32:
            return self._exact().astype(dtype)
        single = self.single
        if single is None:
            single = lax.bitcast_convert_type(self.words[2], np.float32)
        return single if dtype == np.float32 else single.astype(dtype)

    def _exact(self) -> jax.Array:
        low, high = self.words[0].astype(np.uint64), self.words[1].astype(np.uint64)
        bits = low | (high << np.uint64(32))
        target = np.float64 if self.kind is float else np.int64
        return lax.bitcast_convert_type(bits, target)


Operand: TypeAlias = "jax.Array | Scalar | bool | int | float | complex"


def is_number(x: object) -> bool:
    """Whether `x` is a number of promotion class three: a Python number or wrapped scalar."""
    if isinstance(x, Scalar):
        return x.dtype is None
    return isinstance(x, (bool, int, float, complex))


def _number_dtype(x: object) -> torch.dtype:
    kind = x.kind if isinstance(x, Scalar) else type(x)
    if kind is bool:
        return torch.bool
    if kind is int:
        return torch.int64
    if kind is float:
        return torch.get_default_dtype()
    return torch.complex64 if torch.get_default_dtype() != torch.float64 else torch.complex128


def _category(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        return 3
    if dtype.is_floating_point:
        return 2
    return 0 if dtype is torch.bool else 1


def result_type(*operands: Operand) -> np.dtype:
    """The dtype of an arithmetic op on `operands`, by PyTorch's rules."""
    classes: list[torch.dtype | None] = [None, None, None]
    for x in operands:
        if is_number(x):
            index, dtype = 2, _number_dtype(x)
        elif isinstance(x, Scalar):
            assert x.dtype is not None
            index, dtype = 1, x.dtype
        else:
            index, dtype = (0 if x.ndim else 1), dtypes.to_torch(x.dtype)  # type: ignore[union-attr]
        known = classes[index]
        classes[index] = dtype if known is None else torch.promote_types(known, dtype)
    result: torch.dtype | None = None
    for dtype_ in classes:
        if dtype_ is None:
            continue
        if result is None:
            result = dtype_
        elif _category(dtype_) > _category(result):
            result = _lifted(result, dtype_)
    assert result is not None, "result_type needs an operand"
    if result == torch.complex32:  # XLA has none; only a comparison gets as far as here
        result = torch.complex64
    return dtypes.to_numpy(result)


def _lifted(higher: torch.dtype, lower: torch.dtype) -> torch.dtype:
    """Join of two classes when the lower class has the higher category."""
    if lower.is_complex and higher.is_floating_point:
        return torch.promote_types(higher, torch.complex32)
    return lower


#: CPU PyTorch converts a float to these by way of int32, so that -1.0 becomes 255, not 0.
_NARROW_INTEGERS = frozenset(np.dtype(t) for t in (np.uint8, np.int8, np.uint16, np.int16))


def cast(x: Operand, dtype: np.dtype) -> jax.Array:
    """`x` as an array of `dtype` (0-d for numbers); float to integer truncates as in C."""
    if isinstance(x, Scalar):
        return x.to(dtype)
    if isinstance(x, (bool, int, float, complex)):
        return jnp.asarray(np.asarray(x).astype(dtype))
    if x.dtype == dtype:
        return x
    if dtype == np.bool_:
        return x != np.zeros((), x.dtype)
    if dtypes.is_complex(x.dtype) and not dtypes.is_complex(dtype):
        x = lax.real(x)
    if x.dtype == np.bool_ and dtypes.is_inexact(dtype):
        # XLA turns a product with a converted predicate into a selection, which loses the
        # NaN of inf * 0 and of nan * 0; it leaves this selection alone.
        return lax.select(x, jnp.ones(x.shape, dtype), jnp.zeros(x.shape, dtype))
    if dtypes.is_floating(x.dtype) and np.dtype(dtype) in _NARROW_INTEGERS:
        x = x.astype(np.int32)
    return x.astype(dtype)


def promote(*operands: Operand, floating: bool = False) -> tuple[list[jax.Array], np.dtype]:
    """Operands cast to the dtype PyTorch computes in, broadcast against each other.

    Args:
        operands: arrays, scalars, numbers.
        floating: integers and bools become the default float dtype (true division,
            transcendental functions).

    Returns:
        The operands in the *compute* dtype (float32 for 16-bit floats) and the
        *result* dtype to cast the outcome to.
    """
    result = result_type(*operands)
    if floating and not dtypes.is_inexact(result):
        result = dtypes.default_float()
    compute = dtypes.opmath(result)
    arrays = [cast(x, compute) for x in operands]
    return list(jnp.broadcast_arrays(*arrays)), result
