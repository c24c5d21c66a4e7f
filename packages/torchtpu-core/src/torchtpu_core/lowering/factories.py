# SPDX-License-Identifier: Apache-2.0
"""Lowerings of ops that make tensors from numbers: arange, eye, full, windows.

In eager mode PyTorch turns most factories into ``empty`` and an in-place or ``out=``
op; those ``out=`` ops take their shape from `out`, and numbers that do not decide the
shape at run time. The functional overloads serve compiled graphs, where every number
is a constant.
``empty`` gives zeros: a program has no uninitialised values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu_core.lowering import dims, dtypes, layout, promotion
from torchtpu_core.lowering.promotion import Operand
from torchtpu_core.lowering.table import Lowering, composite, native

Number = bool | int | float


def _dtype(dtype: torch.dtype | None, *numbers: object) -> np.dtype:
    """`dtype`, or int64 if `numbers` are whole, or the default float."""
    if dtype is not None:
        return dtypes.to_numpy(dtype)
    if numbers and all(isinstance(n, int) for n in numbers):
        return np.dtype(np.int64)
    return dtypes.default_float()


def _ramp(start: Operand, step: Operand, count: int, dtype: np.dtype) -> jax.Array:
    """``start + i * step``; floats in float64, as CPU PyTorch accumulates."""
    wide = np.dtype(np.int64 if dtypes.is_integral(dtype) else np.float64)
    position = lax.iota(wide, count)
    return promotion.cast(start, wide) + position * promotion.cast(step, wide)


def _arange_step(
    start: Number, end: Number, step: Number = 1, *, dtype: torch.dtype | None = None
) -> jax.Array:
    target = _dtype(dtype, start, end, step)
    if target == np.int64:
        start, end, step = int(start), int(end), int(step)
        count = -((start - end) // step)
        return layout.ramp(_ramp(start, step, count, target).astype(target), start, step)
    count = math.ceil((end - start) / step)
    return _ramp(start, step, count, target).astype(target)


def _arange(end: Number, *, dtype: torch.dtype | None = None) -> jax.Array:
    return _arange_step(0, end, dtype=_whole_or_default(dtype, end))


def _arange_start(start: Number, end: Number, *, dtype: torch.dtype | None = None) -> jax.Array:
    return _arange_step(start, end, dtype=_whole_or_default(dtype, start, end))


def _whole_or_default(dtype: torch.dtype | None, *numbers: Number) -> torch.dtype:
    return dtype if dtype is not None else dtypes.to_torch(_dtype(None, *numbers))


def _ramp_out(
    start: Operand, end: Operand, step: Operand = 1, *, out: jax.ShapeDtypeStruct
) -> jax.Array:
    dtype = np.dtype(out.dtype)
    result = lax.reshape(_ramp(start, step, dims.numel(out.shape), dtype), tuple(out.shape))
    if isinstance(start, int) and isinstance(step, int) and dtype == np.int64:
        return layout.ramp(result, start, step)
    return result


def _range(
    start: Number, end: Number, step: Number = 1, *, dtype: torch.dtype | None = None
) -> jax.Array:
    target = _dtype(dtype)
    return _ramp(start, step, math.floor((end - start) / step) + 1, target).astype(target)


def space_dtype(dtype: torch.dtype | None, *ends: object) -> np.dtype:
    """`dtype`, or the default complex dtype if an end is complex, or the default float."""
    if dtype is None and any(isinstance(e, complex) for e in ends):
        return np.dtype(np.complex64 if dtypes.default_float() == np.float32 else np.complex128)
    return _dtype(dtype)


def identity(rows: int, columns: int, dtype: np.dtype) -> jax.Array:
    """`(rows, columns)` with ones on the main diagonal."""
    shape = (rows, columns)
    return (dims.iota(shape, 0) == dims.iota(shape, 1)).astype(dtype)


def _eye(n: int, *, dtype: torch.dtype | None = None) -> jax.Array:
    return identity(n, n, _dtype(dtype))


def _eye_m(n: int, m: int, *, dtype: torch.dtype | None = None) -> jax.Array:
    return identity(n, m, _dtype(dtype))


def _eye_out(n: int, *, out: jax.ShapeDtypeStruct) -> jax.Array:
    return identity(n, n, np.dtype(out.dtype))


def _eye_m_out(n: int, m: int, *, out: jax.ShapeDtypeStruct) -> jax.Array:
    return identity(n, m, np.dtype(out.dtype))


def _filled(size: Sequence[int], value: Operand, dtype: np.dtype) -> jax.Array:
    return jnp.broadcast_to(promotion.cast(value, dtype), tuple(size))


def _full_dtype(value: object, dtype: torch.dtype | None) -> np.dtype:
    if dtype is not None:
        return dtypes.to_numpy(dtype)
    if isinstance(value, bool):
        return np.dtype(np.bool_)
    return space_dtype(None, value) if isinstance(value, complex) else _dtype(None, value)


def _full(
    size: Sequence[int], fill_value: Number, *, dtype: torch.dtype | None = None
) -> jax.Array:
    return _filled(size, fill_value, _full_dtype(fill_value, dtype))


def _scalar_tensor(s: Number, *, dtype: torch.dtype | None = None) -> jax.Array:
    return _filled((), s, _dtype(dtype))


def _like(self: jax.Array, dtype: torch.dtype | None) -> np.dtype:
    return self.dtype if dtype is None else dtypes.to_numpy(dtype)


def _full_like(
    self: jax.Array, fill_value: Operand, *, dtype: torch.dtype | None = None
) -> jax.Array:
    return _filled(self.shape, fill_value, _like(self, dtype))


def _new_full(
    self: jax.Array,
    size: Sequence[int],
    fill_value: Operand,
    *,
    dtype: torch.dtype | None = None,
) -> jax.Array:
    return _filled(size, fill_value, _like(self, dtype))


def _sized(value: int) -> Callable[..., jax.Array]:
    """A factory ``(size, ...)`` that fills with `value`."""

    def make(size: Sequence[int], *_: object, dtype: torch.dtype | None = None) -> jax.Array:
        return _filled(size, value, _dtype(dtype))

    return make


def _alike(value: int) -> Callable[..., jax.Array]:
    """A factory ``(self)`` of `self`'s shape that fills with `value`."""

    def make(self: jax.Array, *, dtype: torch.dtype | None = None) -> jax.Array:
        return _filled(self.shape, value, _like(self, dtype))

    return make


def _new(value: int) -> Callable[..., jax.Array]:
    """A factory ``(self, size, ...)`` of `self`'s dtype that fills with `value`."""

    def make(
        self: jax.Array, size: Sequence[int], *_: object, dtype: torch.dtype | None = None
    ) -> jax.Array:
        return _filled(size, value, _like(self, dtype))

    return make


def _triangle_indices(
    row: int, col: int, offset: int, dtype: torch.dtype | None, *, upper: bool
) -> jax.Array:
    """`(2, n)` positions of a triangle, row by row: each row is one run of columns."""
    rows = np.arange(row)
    edge = np.clip(rows + offset + (0 if upper else 1), 0, col)
    starts = edge if upper else np.zeros_like(edge)
    lengths = col - edge if upper else edge
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if row else 0
    # The schema's default reaches us as a ScalarType number, which only int64 can be.
    named = isinstance(dtype, torch.dtype)
    target = dtypes.to_numpy(dtype) if named else np.dtype(np.int64)
    position = lax.iota(np.int64, total)
    which = jnp.searchsorted(jnp.asarray(ends), position, side="right")
    shift = jnp.asarray(starts - (ends - lengths))
    column = position + jnp.take(shift, which, mode="clip") if total else position
    return jnp.stack([which.astype(target), column.astype(target)])


def _tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: torch.dtype | None = torch.int64
) -> jax.Array:
    return _triangle_indices(row, col, offset, dtype, upper=False)


def _triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: torch.dtype | None = torch.int64
) -> jax.Array:
    return _triangle_indices(row, col, offset, dtype, upper=True)


def _cosine_window(*weights: float) -> Callable[..., jax.Array]:
    """A window that is a sum of cosines, ``w0 - w1 cos t + w2 cos 2t``, one period of t."""

    def make(
        window_length: int,
        periodic: bool = True,
        *overrides: float,
        dtype: torch.dtype | None = None,
    ) -> jax.Array:
        target = _dtype(dtype)
        factors = (*overrides, *weights[len(overrides) :])
        angle = _window_position(window_length, periodic) * np.float64(2 * math.pi)
        terms = [
            np.float64((-1) ** k * w) * jnp.cos(np.float64(k) * angle)
            for k, w in enumerate(factors)
        ]
        window = sum(terms[1:], terms[0])
        return (jnp.ones_like(window) if window_length == 1 else window).astype(target)

    return make


def _window_position(length: int, periodic: bool) -> jax.Array:
    """`(length,)` float64 from 0 to 1 (1 excluded if periodic)."""
    span = max(length if periodic else length - 1, 1)
    return lax.iota(np.float64, length) / np.float64(span)


def _bartlett_window(
    window_length: int, periodic: bool = True, *, dtype: torch.dtype | None = None
) -> jax.Array:
    position = _window_position(window_length, periodic)
    window = np.float64(1) - jnp.abs(np.float64(2) * position - np.float64(1))
    window = jnp.ones_like(window) if window_length == 1 else window
    return window.astype(_dtype(dtype))


def _kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, **options: Any
) -> torch.Tensor:
    """Torch code, because PyTorch's own composite needs a kernel per device."""
    count = window_length + 1 if periodic and window_length > 1 else window_length
    if options.get("dtype") is None:
        options["dtype"] = torch.get_default_dtype()
    if window_length <= 1:
        return torch.ones(window_length, **options)
    ratio = torch.arange(count, **options) * (2.0 / (count - 1)) - 1.0
    window = torch.i0(beta * (1.0 - ratio * ratio).sqrt()) / torch.i0(ratio.new_full((), beta))
    return window[:window_length]


#: The numbers of a range decide its length. In graphs they are constants; with ``out=``,
#: as eager calls make a range, the recorder keeps the length apart from the numbers.
_RANGE = ("start", "end", "step")
_ENDS = ("start", "end")

_WINDOWS: tuple[tuple[str, Any], ...] = (
    ("hann_window", _cosine_window(0.5, 0.5)),
    ("hann_window.periodic", _cosine_window(0.5, 0.5)),
    ("hamming_window", _cosine_window(0.54, 0.46)),
    ("hamming_window.periodic", _cosine_window(0.54, 0.46)),
    ("hamming_window.periodic_alpha", _cosine_window(0.54, 0.46)),
    ("hamming_window.periodic_alpha_beta", _cosine_window(0.54, 0.46)),
    ("blackman_window", _cosine_window(0.42, 0.5, 0.08)),
    ("blackman_window.periodic", _cosine_window(0.42, 0.5, 0.08)),
    ("bartlett_window", _bartlett_window),
    ("bartlett_window.periodic", _bartlett_window),
)

_CONSTANTS: tuple[tuple[str, Any], ...] = (
    ("zeros", _sized(0)),
    ("ones", _sized(1)),
    ("empty.memory_format", _sized(0)),
    ("empty_strided", _sized(0)),
    ("empty_permuted", _sized(0)),
    ("_efficientzerotensor", _sized(0)),
    ("zeros_like", _alike(0)),
    ("ones_like", _alike(1)),
    ("empty_like", _alike(0)),
    ("new_zeros", _new(0)),
    ("new_ones", _new(1)),
    ("new_empty", _new(0)),
    ("new_empty_strided", _new(0)),
)

TABLE: tuple[Lowering, ...] = (
    native("aten::arange", _arange, static=("end",)),
    native("aten::arange.start", _arange_start, static=_ENDS),
    native("aten::arange.start_step", _arange_step, static=_RANGE),
    # A ramp from 0 in known steps tells others something: the size of all bags of embeddings.
    native("aten::arange.start_out", _ramp_out, static=("step",), special=(0.0,)),
    native("aten::range", _range, static=_ENDS),
    native("aten::range.step", _range, static=_RANGE),
    native("aten::range.out", _ramp_out),
    native("aten::eye", _eye),
    native("aten::eye.m", _eye_m),
    native("aten::eye.out", _eye_out),
    native("aten::eye.m_out", _eye_m_out),
    native("aten::full", _full, static=("fill_value",)),
    native("aten::full_like", _full_like),
    native("aten::new_full", _new_full),
    native("aten::scalar_tensor", _scalar_tensor, static=("s",)),
    native("aten::tril_indices", _tril_indices),
    native("aten::triu_indices", _triu_indices),
    *(native(f"aten::{name}", function) for name, function in _CONSTANTS),
    *(native(f"aten::{name}", function) for name, function in _WINDOWS),
    composite("aten::kaiser_window", _kaiser_window),
    composite("aten::kaiser_window.periodic", _kaiser_window),
    composite("aten::kaiser_window.beta", _kaiser_window),
)
