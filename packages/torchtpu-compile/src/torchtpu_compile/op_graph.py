# SPDX-License-Identifier: Apache-2.0
"""Parts of a graph of one op whose sizes are open."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torchtpu_core.runtime import tables

from torchtpu_compile.decompositions import missing_rows

#: The value of symbol `i` while the op is traced is ``_HINT + 2 * i``: sizes that differ now
#: and then must not be equal by chance.
_HINT = 1031
_EXAMPLES: Mapping[str, bool | int | float] = {"b": True, "i": 1, "f": 1.0}
#: Of a scalar that stands in for a number in what an op is taken apart into.
_SCALARS = {"i": torch.int64, "f": torch.float64}


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


def scalar_dtype(kind: str, dtype: torch.dtype | None) -> torch.dtype:
    """Of the tensor that stands for a scalar in what an op is taken apart into."""
    return dtype or _SCALARS[kind]


def taken_apart(
    call: Node, placeholders: Sequence[Node], scalars: Mapping[Node, tuple[int, str, Any]]
) -> GraphModule | None:
    """The ops that PyTorch takes a call apart into.

    Args:
        call: of an op.
        placeholders: its operands, scalars and numbers.
        scalars: those of them that are scalars; they become tensors of no dimensions.

    Returns:
        A graph of these placeholders, in their order, or None if it does not take the call apart.
    """
    table = missing_rows(tables.current(), open_sizes=True)
    function = table.get(call.target) or decomposition_table.get(call.target)
    if function is None or any(kind not in _SCALARS for _, kind, _ in scalars.values()):
        return None

    def composite(*values: Any) -> Any:
        known = dict(zip(placeholders, values, strict=True))
        args, kwargs = torch.fx.node.map_arg((call.args, call.kwargs), known.__getitem__)
        returned = function(*args, **kwargs)
        return tuple(returned) if isinstance(returned, tuple) else returned

    def example(placeholder: Node) -> Any:
        if placeholder not in scalars:
            return placeholder.meta["val"]
        _, kind, dtype = scalars[placeholder]
        return torch.empty((), dtype=scalar_dtype(kind, dtype), device="tpu")

    with enable_python_dispatcher():
        return make_fx(composite, decomposition_table=table)(*map(example, placeholders))
