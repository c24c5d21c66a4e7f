# SPDX-License-Identifier: Apache-2.0
"""`associative_scan` of open length in compiled graphs.

torch halves the length until one element is left and asks at each step whether it is even: a
graph for each length, on any device. Here each round combines every element with the one twice
as far before it, which asks only whether the length is reached: graphs for each power of two. One
element more is scanned than there are, so that no round has a single pair: PyTorch fixes sizes
of 1, and the length with them.
It does `log2(length)` times the work of one round where torch does about two, so a length that
is known keeps torch's way, and so do other devices.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


@functools.cache
def register() -> None:
    """Let Dynamo trace scans of open length on the device in rounds."""
    from torch._higher_order_ops.associative_scan import generic_associative_scan as original
    from torch.fx.experimental.symbolic_shapes import statically_known_true
    from torch.utils import _pytree as pytree

    # The same code under another identity: Dynamo would trace `original` as what follows.
    own = types.FunctionType(
        original.__code__, original.__globals__, original.__name__, original.__defaults__
    )

    def scan(
        operator: Callable[..., Any],
        leaves: Sequence[Tensor],
        dim: int = 0,
        additional_inputs: Sequence[Any] = (),
    ) -> list[Tensor]:
        count = leaves[0].shape[dim]
        is_known = statically_known_true(count % 2 == 0) or statically_known_true(count % 2 == 1)
        if is_known or leaves[0].device.type != "tpu":
            return own(operator, leaves, dim, additional_inputs)  # type: ignore[no-any-return]
        values = [torch.cat([x, x.narrow(dim, count - 1, 1)], dim) for x in leaves]
        reach = 1
        while reach < count:
            pairs = count + 1 - reach
            before = [x.narrow(dim, 0, pairs) for x in values]
            after = [x.narrow(dim, reach, pairs) for x in values]
            both = pytree.tree_leaves(operator(*before, *after, *additional_inputs))
            values = [
                torch.cat([x.narrow(dim, 0, reach), y], dim)
                for x, y in zip(values, both, strict=True)
            ]
            reach *= 2
        return [x.narrow(dim, 0, count) for x in values]

    torch.compiler.substitute_in_graph(original)(scan)
