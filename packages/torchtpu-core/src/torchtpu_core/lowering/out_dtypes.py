# SPDX-License-Identifier: Apache-2.0
"""Reductions and scans whose ``out=`` says in which dtype they compute.

PyTorch's kernels read the operand in the dtype of the result: ``torch.sum(x, 1, out=float32)`` of
a bfloat16 `x` adds up and returns float32, where a sum in bfloat16 would have been rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax

from torchtpu_core.lowering import dtypes, reductions, scans
from torchtpu_core.lowering.promotion import cast
from torchtpu_core.lowering.table import Lowering, native


def _stated(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """With the dtype of `out` where the call states none."""

    def call(
        self: jax.Array, *args: Any, out: jax.ShapeDtypeStruct, dtype: Any = None, **kwargs: Any
    ) -> jax.Array:
        return function(self, *args, dtype=dtype or dtypes.to_torch(out.dtype), **kwargs)

    return call


def _read(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """The operand is read in the dtype of `out`, if that is the wider one."""

    def call(self: jax.Array, *args: Any, out: jax.ShapeDtypeStruct, **kwargs: Any) -> jax.Array:
        same_kind = dtypes.is_complex(out.dtype) == dtypes.is_complex(self.dtype)
        wider = dtypes.is_inexact(out.dtype) and out.dtype.itemsize > self.dtype.itemsize
        return function(cast(self, out.dtype) if wider and same_kind else self, *args, **kwargs)

    return call


#: ``out=`` overload -> the overload that returns the result.
_STATING = {
    "sum.IntList_out": "sum.dim_IntList",
    "sum.out": "sum",
    "nansum.out": "nansum",
    "mean.out": "mean.dim",
    "mean.dtype_out": "mean",
    "prod.int_out": "prod.dim_int",
    "prod.out": "prod",
    "cumsum.out": "cumsum",
    "cumprod.out": "cumprod",
}
_READING = {
    "logsumexp.out": "logsumexp",
    "var.correction_out": "var.correction",
    "std.correction_out": "std.correction",
}
_ROWS = {row.overload: row for row in (*reductions.TABLE, *scans.TABLE)}


def _rows(
    forms: dict[str, str], adapt: Callable[[Callable[..., Any]], Callable[..., jax.Array]]
) -> Iterator[Lowering]:
    for form, functional in forms.items():
        row = _ROWS[f"aten::{functional}"]
        assert row.function is not None
        yield native(f"aten::{form}", adapt(row.function), static=row.static)


TABLE: tuple[Lowering, ...] = (*_rows(_STATING, _stated), *_rows(_READING, _read))
