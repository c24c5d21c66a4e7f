# SPDX-License-Identifier: Apache-2.0
"""Ops that only fill what they are given (`arange.start_out`), at padded sizes.

They read no tensor, so that they have no graph: a fill makes the value of the padded sizes from
the op's arguments, of which those that may vary hold the sizes of another call. Values are
those that the row makes at true sizes, in front; what follows them is unspecified.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import sympy
from torchtpu_core.lowering import random, spacing
from torchtpu_core.lowering.factories import identity
from torchtpu_core.lowering.interpreter import run_row
from torchtpu_core.lowering.table import Lowering
from torchtpu_core.runtime import tables

from torchtpu_compile.padded import Sizes
from torchtpu_compile.true_rng import TrueRng


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """A call of an op that fills a tensor.

    Attributes:
        row: of the op.
        args: its arguments.
        kwargs: its keyword arguments: `out`, of padded sizes, and `rng` of a random op.
        exprs: true sizes of what it fills.
        sizes: of the program.
    """

    row: Lowering
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    exprs: Sequence[sympy.Expr]
    sizes: Sizes

    @property
    def out(self) -> jax.ShapeDtypeStruct:
        """What is filled, of padded sizes."""
        out: jax.ShapeDtypeStruct = self.kwargs["out"]
        return out

    @property
    def count(self) -> jax.Array:
        """The true size of what has one dimension."""
        (expr,) = self.exprs
        return self.sizes.true(expr)


def _as_longer(call: Filling) -> Any:
    """An op whose result begins as a longer one does."""
    return run_row(call.row, list(call.args), dict(call.kwargs), tables.current())


def _eye(call: Filling) -> jax.Array:
    rows, columns = call.out.shape
    return identity(rows, columns, call.out.dtype)


def _linspace(call: Filling) -> jax.Array:
    start, end, _ = call.args
    (room,) = call.out.shape
    return spacing.even_steps(start, end, room, call.out.dtype, count=call.count)


def _logspace(call: Filling) -> jax.Array:
    start, end, _, *base = call.args
    (room,) = call.out.shape
    factor = base[0] if base else 10.0
    return spacing.power_steps(start, end, room, factor, call.out.dtype, count=call.count)


def _randperm(call: Filling) -> jax.Array:
    rng = TrueRng.of(call.kwargs["rng"], call.sizes, call.exprs)
    (room,) = call.out.shape
    return random.permutation(room, rng, count=call.count)


FILLS: Mapping[str, Callable[[Filling], Any]] = {
    "aten::arange.start_out": _as_longer,
    "aten::eye.m_out": _eye,
    "aten::linspace.out": _linspace,
    "aten::logspace.out": _logspace,
    "aten::randperm.generator_out": _randperm,
}
