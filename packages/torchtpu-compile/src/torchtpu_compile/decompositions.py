# SPDX-License-Identifier: Apache-2.0
"""Decompositions for what the lowering tables do not have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torchtpu_core.lowering.interpreter import overload_name
from torchtpu_core.lowering.table import Kind, Lowering

#: What `missing_rows` found, for tables of so many rows: rows are added, never removed.
_found: dict[int, dict[Any, Callable[..., Any]]] = {}


def missing_rows(tables: Mapping[str, Lowering]) -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions of the overloads that no program can hold.

    What has a row is lowered from that row; only the rest is taken apart while the
    graph is traced. Batch norm in training is too: what follows its statistics is cheap, and
    the backward pass computes it again instead of keeping it (`backend._partition`).
    Collecting PyTorch's takes 40 ms, so it is done once.
    """
    if len(tables) not in _found:
        _found.clear()
        _found[len(tables)] = _collect(tables)
    return _found[len(tables)]


def _collect(tables: Mapping[str, Lowering]) -> dict[Any, Callable[..., Any]]:
    from torch._decomp import core_aten_decompositions, decomposition_table

    taken_apart = torch.ops.aten._native_batch_norm_legit_functional.default
    return {
        op: function
        for op, function in core_aten_decompositions().items()
        if isinstance(op, torch._ops.OpOverload) and not _in_program(op, tables)
    } | {taken_apart: decomposition_table[taken_apart]}


def _in_program(op: torch._ops.OpOverload, tables: Mapping[str, Lowering]) -> bool:
    row = tables.get(overload_name(op))
    return row is not None and row.kind in (Kind.NATIVE, Kind.DECOMPOSITION)
