# SPDX-License-Identifier: Apache-2.0
"""How large the largest value of a graph is at given sizes.

XLA may keep less than every value, but the work of those that it fuses grows with them as well.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import sympy
import torch
from torch.fx import Node

from torchtpu_compile.padded import Sizes
from torchtpu_compile.symbols import Unbounded, expression, is_static


class LargestValue:
    """The bytes of the largest of some values, called with the value of each symbol.

    Args:
        values: the sizes and the bytes of an element of each.
        symbols: in the order in which their values are given.
    """

    def __init__(
        self,
        values: Iterable[tuple[Sequence[sympy.Expr], int]],
        symbols: Sequence[sympy.Symbol],
    ) -> None:
        self._symbols = symbols
        #: By sizes that are open: what they are multiplied by at most.
        self._bytes: dict[tuple[sympy.Expr, ...], int] = {}
        for exprs, itemsize in values:
            known = math.prod(int(e) for e in exprs if is_static(e)) * itemsize
            found = tuple(sorted((e for e in exprs if not is_static(e)), key=str))
            self._bytes[found] = max(self._bytes.get(found, 0), known)
        self._at = functools.lru_cache(maxsize=256)(self._largest)

    def __call__(self, sizes: tuple[int, ...]) -> int:
        """The bytes at given sizes; a value whose size nothing bounds counts as none."""
        return self._at(sizes)

    def _largest(self, values: tuple[int, ...]) -> int:
        sizes = Sizes(dict(zip(self._symbols, values, strict=True)), {})
        return max((_product(sizes, exprs) * n for exprs, n in self._bytes.items()), default=0)


def of_nodes(nodes: Iterable[Node], symbols: Sequence[sympy.Symbol]) -> LargestValue:
    """The largest value of a graph's nodes."""
    found = [t for node in nodes for t in tensors(node.meta.get("val"))]
    sizes = [([expression(n) for n in t.shape], t.itemsize) for t in found]
    return LargestValue(sizes, symbols)


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors that a node's value is or has."""
    if isinstance(value, (list, tuple)):
        return [t for part in value for t in tensors(part)]
    return [value] if isinstance(value, torch.Tensor) else []


def _product(sizes: Sizes, exprs: Sequence[sympy.Expr]) -> int:
    try:
        return math.prod(sizes.padded(e) for e in exprs)
    except (Unbounded, ZeroDivisionError):
        return 0
