# SPDX-License-Identifier: Apache-2.0
"""Decompositions for what the lowering tables do not have."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torchtpu_core.lowering import encoder_layers, memory_formats
from torchtpu_core.lowering.interpreter import overload_name
from torchtpu_core.lowering.table import Kind, Lowering, operator

from torchtpu_compile import open_numbers, tensor_lists

#: Composites of torch ops whose results have sizes that do not depend on values.
_SIZED = (
    "aten::_linalg_det",
    "aten::_linalg_slogdet",
    "aten::_jagged_to_padded_dense_forward",
    "aten::_padded_dense_to_jagged_forward",
)
#: Ops without a rule whose decompositions torch has, but does not count among the core ones.
_ALSO_APART = (
    torch.ops.aten.dist.default,
    torch.ops.aten.narrow_copy.default,
    torch.ops.aten.permute_copy.default,
)
#: What `missing_rows` found, for tables of so many rows: rows are added, never removed.
_found: dict[tuple[int, bool], dict[Any, Callable[..., Any]]] = {}


def missing_rows(
    tables: Mapping[str, Lowering], *, open_sizes: bool = False
) -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions of the overloads that no program can hold.

    What has a row is lowered from that row; only the rest is taken apart while the
    graph is traced. In a graph with `open_sizes` a row also needs a rule for padding, unless
    it draws random numbers, which have to be those of eager mode. Batch norm in training is
    taken apart too: what follows its statistics is cheap, and the backward pass computes it
    again instead of keeping it (`backend._partition`).
    Collecting PyTorch's takes 40 ms, so it is done once.
    """
    key = len(tables), open_sizes
    if key not in _found:
        _found[key] = _collect(tables, open_sizes)
    return _found[key]


def _collect(tables: Mapping[str, Lowering], open_sizes: bool) -> dict[Any, Callable[..., Any]]:
    from torch._decomp import core_aten_decompositions, decomposition_table

    has_place = _in_bounded_program if open_sizes else in_program
    taken_apart = torch.ops.aten._native_batch_norm_legit_functional.default
    found = {
        op: function
        for op, function in core_aten_decompositions().items()
        if isinstance(op, torch._ops.OpOverload) and not has_place(op, tables)
    } | {taken_apart: decomposition_table[taken_apart]}
    found |= {operator(name): tables[name].function for name in _SIZED}
    found |= open_numbers.decompositions()
    if open_sizes:
        found |= {op: decomposition_table[op] for op in _ALSO_APART}
        found |= encoder_layers.DECOMPOSITIONS
        found |= tensor_lists.decompositions(tables)
    return {op: _laid_out(op, function) for op, function in found.items()}


def _laid_out(op: torch._ops.OpOverload, function: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition whose result lies in memory as that of the operator does."""
    rule = memory_formats.RULES.get(overload_name(op))
    if rule is None:
        return function

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        wanted = rule(args)
        results = function(*args, **kwargs)  # NotImplemented leaves the operator whole
        if isinstance(wanted, torch.Tensor):
            return results  # taken apart to pointwise operators
        return pytree.tree_map_only(
            torch.Tensor, lambda t: t.contiguous(memory_format=wanted), results
        )

    return run


def in_program(op: torch._ops.OpOverload, tables: Mapping[str, Lowering]) -> bool:
    """Whether a program can hold a call of the overload."""
    row = tables.get(overload_name(op))
    return row is not None and row.kind in (Kind.NATIVE, Kind.DECOMPOSITION)


def _in_bounded_program(op: torch._ops.OpOverload, tables: Mapping[str, Lowering]) -> bool:
    return in_program(op, tables) and (has_rule(op) or tables[overload_name(op)].random)


def has_rule(op: torch._ops.OpOverload) -> bool:
    """Whether the overload can be computed at padded sizes, if it has a row."""
    from torchtpu_compile.bounded_rules import RULES

    return overload_name(op) in RULES or torch.Tag.pointwise in op.tags
