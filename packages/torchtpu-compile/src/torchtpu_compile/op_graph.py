# SPDX-License-Identifier: Apache-2.0
"""Parts of a graph of one op whose sizes are open."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.source import ConstantSource
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

#: The value of symbol `i` while the op is traced is ``_HINT + 2 * i``: sizes that differ now
#: and then must not be equal by chance.
_HINT = 1031
_EXAMPLES: Mapping[str, bool | int | float] = {"b": True, "i": 1, "f": 1.0}


def new_symbol(env: ShapeEnv, index: int) -> torch.SymInt:
    """The size number `index` of an op, open."""
    source = ConstantSource(f"size{index}")
    hint = _HINT + 2 * index
    symbol = env.create_symbol(hint, source, dynamic_dim=DimDynamic.DYNAMIC)
    return env.create_symintnode(symbol, hint=hint, source=source)


@contextlib.contextmanager
def without_reports() -> Iterator[None]:
    """PyTorch logs as an error what it also raises: here a reason for a program per size."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def node_arguments(
    node: Mapping[str, Any],
    graph: Graph,
    operands: Sequence[Node],
    numbers: Mapping[str, list[int | Node]],
) -> tuple[list[Any], dict[str, Any], dict[Node, tuple[int, str, Any]]]:
    """The op's arguments as nodes; of each scalar's node its place, kind and dtype."""
    scalars: dict[Node, tuple[int, str, Any]] = {}

    def scalar(position: int, kind: str, dtype: Any = None) -> Node:
        made = graph.placeholder("number")
        example = _EXAMPLES[kind]
        made.meta["val"] = example if dtype is None else torch.empty((), dtype=dtype, device="tpu")
        scalars[made] = (position, kind, dtype)
        return made

    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for name, keyword, kind, payload in node["args"]:
        value = payload
        if kind == "tensor":
            value = operands[payload]
        elif kind == "tensors":
            value = [None if i < 0 else operands[i] for i in payload]
        elif kind == "scalar":
            value = scalar(*payload)
        elif kind == "scalars":
            value = [scalar(i, k) for i, k in zip(*payload, strict=True)]
        elif name in numbers:
            listed = isinstance(payload, (list, tuple))
            value = numbers[name] if listed else numbers[name][0]
        if keyword:
            kwargs[name] = value
        else:
            args.append(value)
    return args, kwargs, scalars
