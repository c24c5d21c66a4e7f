# SPDX-License-Identifier: Apache-2.0
"""Ops of open sizes on JAX values: what a program of padded sizes computes.

`open_op` decides which sizes get one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import sympy
import torch
from torch.fx import Node
from torchtpu_core.lowering import checks, dtypes, mxu, storage_views
from torchtpu_core.lowering.promotion import cast
from torchtpu_core.lowering.storage_views import Geometry, Plan
from torchtpu_core.runtime import tables
from torchtpu_core.runtime.trace_lowering import arguments
from torchtpu_core.runtime.trace_words import Words

from torchtpu_compile.bounded import BoundedInterpreter
from torchtpu_compile.op_graph import read_inputs, results_of, scalar_dtype
from torchtpu_compile.open_fills import FILLS, Filling
from torchtpu_compile.open_graph import OpenGraph, arranged
from torchtpu_compile.padded import Padded, Sizes, padded_size
from torchtpu_compile.symbols import expression


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLowering:
    """Ops that follow each other, as a function on arrays of padded sizes.

    Attributes:
        graph: of the ops.
        nodes: of a call of them.
        reads: of each tensor read from outside, whether it is read from its storage's value.
        live: (op, output) of each result that is needed.
        scalar_count: how many scalars a call has.
    """

    graph: OpenGraph
    nodes: Sequence[Mapping[str, Any]]
    reads: Sequence[bool]
    live: Sequence[tuple[int, int]]
    scalar_count: int

    def results(
        self,
        padded: Mapping[sympy.Symbol, int],
        arrays: Sequence[jax.Array],
        collected: checks.Collected,
    ) -> list[jax.Array]:
        """What is needed of the results, of padded sizes.

        Args:
            padded: of each symbol.
            arrays: operands, true sizes and, if there are any, scalar words.
            collected: gets the checks of the ops.
        """
        words = Words(arrays[-1] if self.scalar_count else None)
        true = arrays[-2 if self.scalar_count else -1].astype(np.int64)
        sizes = Sizes(padded, {s: true[i] for i, s in enumerate(self.graph.symbols)})
        given = iter(arrays)
        are_read = iter(self.reads)
        results: list[list[Padded]] = []
        for number, (op, node) in enumerate(zip(self.graph.ops, self.nodes, strict=True)):
            collected.node = number
            operands = []
            for index, described in enumerate(read_inputs(node)):
                exprs = self.graph.sizes_read(number, index) if op.operands else []
                place, _, _, plan = described
                if (number, index) not in self.graph.reads:
                    words.take(plan[4])
                    operands.append(arranged(results[place[1]][place[2]], described, exprs, sizes))
                else:
                    array = None if place is None else next(given)
                    operands.append(_operand(array, described, exprs, sizes, words, next(are_read)))
            for *_, plan in node["inputs"][len(operands) :]:
                words.take(plan[4])
            for _, _, _, plan, _ in node["outputs"]:
                words.take(plan[4])
            scalars = words.take(node["scalars"])
            with mxu.using(node["precision"]):
                results.append(self._of_op(number, node, operands, sizes, words, scalars))
        return [sizes.compact(results[op][output]).array for op, output in self.live]

    def _of_op(
        self,
        number: int,
        node: Mapping[str, Any],
        operands: Sequence[Padded],
        sizes: Sizes,
        words: Words,
        scalars: range,
    ) -> list[Padded]:
        """The results of an op, of the dtypes that PyTorch gives them."""
        op = self.graph.ops[number]
        if op.call is None:
            return [_filled(node, self.graph.results[number][0], words, scalars, sizes)]
        env: dict[Node, Any] = dict(zip(op.operands, operands, strict=True))
        for placeholder, (position, kind, dtype) in op.scalars.items():
            scalar = words.scalar(scalars[position], kind, dtype)
            if op.is_whole:
                env[placeholder] = scalar
            else:
                of_part = dtypes.to_numpy(scalar_dtype(kind, dtype))
                env[placeholder] = Padded(scalar.to(of_part), ())
        env.update({number: expression(number.meta["val"]) for number in op.numbers})
        rng = words.rng(scalars) if node["random"] else None
        BoundedInterpreter(op.nodes, tables.current()).run(env, sizes, rng)
        value = torch.fx.node.map_arg(op.returned, env.__getitem__)
        specs = [spec for _, specs in node["outs"] for spec in specs] + list(node["written"])
        return [
            Padded(cast(result.array, dtypes.to_numpy(dtype)), result.dims)
            for result, (_, _, dtype) in zip(results_of(node, value), specs, strict=True)
        ]


def _operand(
    array: jax.Array | None,
    described: Sequence[Any],
    exprs: Sequence[sympy.Expr],
    sizes: Sizes,
    words: Words,
    is_read: bool,
) -> Padded:
    """A tensor from outside, from the tensor itself or, if it `is_read`, from its storage."""
    _, base, view, plan = described
    dims = tuple(sizes.dim(e) for e in exprs)
    if array is None:  # as programs of true sizes have what was never written
        shape = [padded_size(dim) for dim in dims]
        words.take(plan[4])
        return Padded(jnp.zeros(shape, dtypes.to_numpy(view[2])), dims)
    if not is_read:
        words.take(plan[4])
        return Padded(array, dims)
    # Other calls, whose views start elsewhere, run the program, too.
    front = tuple(whole == part for whole, part in zip(plan[1], plan[2], strict=True))
    starts = words.starts((*plan[:-1], front))
    geometry = Geometry(*base), Geometry(*view), Plan(*plan)
    return Padded(storage_views.read(array, *geometry, starts), dims)


def _filled(
    node: Mapping[str, Any],
    exprs: Sequence[sympy.Expr],
    words: Words,
    scalars: range,
    sizes: Sizes,
) -> Padded:
    ((_, _, dtype),) = node["written"]
    args, kwargs = arguments(node, [], words, scalars)
    dims = tuple(sizes.dim(e) for e in exprs)
    shape = [padded_size(dim) for dim in dims]
    out = kwargs["out"] = jax.ShapeDtypeStruct(shape, dtypes.to_numpy(dtype))
    call = Filling(row=node["row"], args=args, kwargs=kwargs, exprs=exprs, sizes=sizes)
    return Padded(cast(FILLS[node["name"]](call), out.dtype), dims)
