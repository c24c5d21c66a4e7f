# SPDX-License-Identifier: Apache-2.0
"""Precision of matrix products, and the rounding of a TPU's matrix unit.

An MXU multiplies bfloat16 numbers and sums in float32. A float32 product is made of
1, 3 or 6 such passes, which ``torch.set_float32_matmul_precision`` chooses: each
operand is split into bfloat16 parts, and the products of the leading parts are added.
XLA:CPU ignores the choice and multiplies in float32. With ``TORCH_TPU_NUMERICS=tpu``
a simulated device makes the passes, so that its results are as far from float32 as
the hardware's. Not modelled: the order in which the MXU sums.

Reference: Henry, Tang, Heinecke, "Leveraging the bfloat16 Artificial Intelligence
Datatype For Higher-Precision Computations", ARITH 2019.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

_BY_NAME = {
    "highest": lax.Precision.HIGHEST,
    "high": lax.Precision.HIGH,
    "medium": lax.Precision.DEFAULT,
}
#: Pairs of parts whose products are added, least significant first.
PASSES: dict[lax.Precision, tuple[tuple[int, int], ...]] = {
    lax.Precision.DEFAULT: ((0, 0),),
    lax.Precision.HIGH: ((1, 0), (0, 1), (0, 0)),
    lax.Precision.HIGHEST: ((2, 0), (0, 2), (1, 1), (1, 0), (0, 1), (0, 0)),
}
_BF16_EXPONENT_BITS, _BF16_MANTISSA_BITS = 8, 7
_ROUNDED = (np.dtype(np.float32), np.dtype(np.complex64))

_local = threading.local()
_simulated = False


def simulate(on: bool) -> None:
    """Whether products are made of bfloat16 passes from now on; set once, at the start."""
    global _simulated
    _simulated = on


def simulated() -> bool:
    """Whether products are made of bfloat16 passes."""
    return _simulated


def using(name: str | None) -> AbstractContextManager[None]:
    """Lower the products inside the block at a precision of PyTorch's; None: as it is now."""
    return _set("name", name)


def precision() -> lax.Precision:
    """What ``torch.set_float32_matmul_precision`` asked for when the op was called."""
    name = getattr(_local, "name", None)
    return _BY_NAME[name or torch.get_float32_matmul_precision()]


def for_platform(platform: str) -> AbstractContextManager[None]:
    """Lower the products inside the block for a platform of XLA."""
    return _set("platform", platform)


def lowers_for(platform: str) -> bool:
    """Whether what is lowered now is known to be for a platform of XLA."""
    return getattr(_local, "platform", None) == platform


@contextlib.contextmanager
def _set(setting: str, value: str | None) -> Iterator[None]:
    """A setting of this thread, as it was after the block."""
    outer = getattr(_local, setting, None)
    setattr(_local, setting, value)
    try:
        yield
    finally:
        setattr(_local, setting, outer)


def first_operand(x: jax.Array) -> jax.Array:
    """The first operand of a product, in a form that XLA can multiply.

    XLA:CPU multiplies 16-bit floats in float32 where it has no kernel for them, and decides so
    before it merges a transpose of the first operand into the product. A product for which
    there was a kernel and then is none fails when it runs (jaxlib 0.10.2).
    """
    if x.dtype.itemsize == 2 and lowers_for("cpu"):
        return lax.optimization_barrier(x)
    return x


def multiply(
    product: Callable[[jax.Array, jax.Array], jax.Array], x: jax.Array, y: jax.Array
) -> jax.Array:
    """A bilinear `product` of two operands as the device computes it.

    Args:
        product: a matrix product or convolution, linear in each operand.
        x: first operand, any shape.
        y: second operand, of `x`'s dtype.
    """
    if not _simulated or x.dtype not in _ROUNDED:
        return product(x, y)
    passes = PASSES[precision()]
    count = 1 + max(i for i, _ in passes)
    lefts, rights = parts(x, count), parts(y, count)
    *small, largest = [product(lefts[i], rights[j]) for i, j in passes]
    if not small:
        return largest
    correction = functools.reduce(lambda total, term: total + term, small)
    # Infinity times a part that is zero is no correction.
    correction = jnp.where(jnp.isnan(correction), jnp.zeros((), correction.dtype), correction)
    return correction + largest


def parts(x: jax.Array, count: int) -> list[jax.Array]:
    """`x` as a sum of `count` arrays whose elements are bfloat16 numbers, largest first."""
    found: list[jax.Array] = []
    for _ in range(count):
        part = _rounded(x)
        found.append(part)
        x = jnp.where(jnp.isfinite(part), x - part, jnp.zeros((), x.dtype))
    return found


def _rounded(x: jax.Array) -> jax.Array:
    if x.dtype == np.complex64:
        return lax.complex(_rounded(lax.real(x)), _rounded(lax.imag(x)))
    # Not a pair of casts: XLA may drop those.
    return lax.reduce_precision(x, _BF16_EXPONENT_BITS, _BF16_MANTISSA_BITS)
