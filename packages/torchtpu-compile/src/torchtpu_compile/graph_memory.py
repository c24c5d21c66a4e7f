# SPDX-License-Identifier: Apache-2.0
"""What fills the device when a compiled graph is out of memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.fx import Node
from torchtpu_core.units import GIB

from torchtpu_compile import value_bytes
from torchtpu_compile.errors import describe
from torchtpu_compile.padded import Sizes
from torchtpu_compile.program import Program
from torchtpu_compile.symbols import Unbounded, expression

_LISTED = 5


def report(programs: Sequence[Program]) -> str:
    """The largest values of a graph and the lines that made them."""
    found = sorted((row for program in programs for row in _rows(program)), key=lambda row: -row[0])
    texts = list(dict.fromkeys(text for _, text in found))
    return "\n".join(["The largest values of the compiled graph:", *texts[:_LISTED]])


def _rows(program: Program) -> list[tuple[int, str]]:
    known = program.bounded.last if program.bounded is not None else {}
    rows = []
    for node in program.nodes:
        for tensor in value_bytes.tensors(node.meta.get("val")):
            shape = [_size(n, known) for n in tensor.shape]
            if all(isinstance(n, int) for n in shape):
                rows.append(_row(node, tensor, shape))
    return rows


def _row(node: Node, tensor: torch.Tensor, shape: list[Any]) -> tuple[int, str]:
    nbytes = math.prod(shape) * tensor.itemsize
    padded = " (padded)" if any(isinstance(n, torch.SymInt) for n in tensor.shape) else ""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return nbytes, f"  {nbytes / GIB:.3f} GiB  {dtype} {shape}{padded}  of {describe(node)}"


def _size(size: Any, known: Mapping[sympy.Symbol, int]) -> int | None:
    """A size at the padded sizes of the last run; None: its symbols have none."""
    if isinstance(size, int):
        return size
    try:
        return Sizes(known, {}).padded(expression(size))
    except (Unbounded, ZeroDivisionError):
        return None
