# SPDX-License-Identifier: Apache-2.0
"""torch dtypes and the NumPy dtypes that JAX uses for them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

_PAIRS: tuple[tuple[torch.dtype, Any], ...] = (
    (torch.bool, np.bool_),
    (torch.uint8, np.uint8),
    (torch.int8, np.int8),
    (torch.int16, np.int16),
    (torch.int32, np.int32),
    (torch.int64, np.int64),
    (torch.uint16, np.uint16),
    (torch.uint32, np.uint32),
    (torch.uint64, np.uint64),
    (torch.float16, np.float16),
    (torch.bfloat16, jnp.bfloat16),
    (torch.float32, np.float32),
    (torch.float64, np.float64),
    (torch.complex64, np.complex64),
    (torch.complex128, np.complex128),
    (torch.float8_e4m3fn, jnp.float8_e4m3fn),
    (torch.float8_e5m2, jnp.float8_e5m2),
    (torch.float8_e4m3fnuz, jnp.float8_e4m3fnuz),
    (torch.float8_e5m2fnuz, jnp.float8_e5m2fnuz),
    (torch.float8_e8m0fnu, jnp.float8_e8m0fnu),
)

_TO_NUMPY: dict[torch.dtype, np.dtype] = {t: np.dtype(n) for t, n in _PAIRS}
_TO_TORCH: dict[np.dtype, torch.dtype] = {n: t for t, n in _TO_NUMPY.items()}


def to_numpy(dtype: torch.dtype) -> np.dtype:
    """The NumPy dtype of a torch dtype.

    Raises:
        TypeError: XLA has no such type (quantised and sub-byte types).
    """
    try:
        return _TO_NUMPY[dtype]
    except KeyError:
        raise TypeError(
            f"dtype {dtype} does not exist on device 'tpu'. "
            f"Supported: {', '.join(str(d) for d in _TO_NUMPY)}."
        ) from None


def to_torch(dtype: np.dtype) -> torch.dtype:
    """The torch dtype of a NumPy dtype."""
    return _TO_TORCH[np.dtype(dtype)]


def opmath(dtype: np.dtype) -> np.dtype:
    """The dtype in which PyTorch computes an elementwise op on `dtype`."""
    if dtype in _LOW_PRECISION:
        return np.dtype(np.float32)
    return dtype


_LOW_PRECISION = frozenset(
    n for t, n in _TO_NUMPY.items() if t.is_floating_point and t.itemsize < 4
)


def is_floating(dtype: np.dtype) -> bool:
    """Whether `dtype` is a real floating-point type, bfloat16 and float8 included."""
    return bool(jnp.issubdtype(dtype, jnp.floating))


def is_complex(dtype: np.dtype) -> bool:
    """Whether `dtype` is complex."""
    return bool(jnp.issubdtype(dtype, jnp.complexfloating))


def is_inexact(dtype: np.dtype) -> bool:
    """Whether `dtype` is real or complex floating point."""
    return bool(jnp.issubdtype(dtype, jnp.inexact))


def is_integral(dtype: np.dtype, *, include_bool: bool = True) -> bool:
    """Whether `dtype` holds whole numbers."""
    return bool(jnp.issubdtype(dtype, jnp.integer)) or (include_bool and dtype == np.bool_)


def default_float() -> np.dtype:
    """`torch.get_default_dtype()` as a NumPy dtype."""
    return to_numpy(torch.get_default_dtype())
