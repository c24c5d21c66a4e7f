# SPDX-License-Identifier: Apache-2.0
"""A text that says what a step of a graph computes, the same in every process.

With it the step's programs are found in the cache without being lowered. It names the
operators, how they are connected, the metadata of every value, the constants, and the
user's lines, which errors of the step show.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node
from torchtpu_core.lowering.interpreter import overload_name
from torchtpu_core.lowering.table import Lowering
from torchtpu_core.runtime import tables as core_tables

from torchtpu_compile import recomputed
from torchtpu_compile.errors import describe
from torchtpu_compile.placement import is_number

if TYPE_CHECKING:
    from torchtpu_compile.program import Interface


def step_key(
    nodes: Sequence[Node],
    interface: Interface,
    values: tuple[Any, ...],
    tables: Mapping[str, Lowering],
) -> str:
    """The key of a step, empty if it calls what cannot be named.

    Args:
        nodes: the step's nodes.
        interface: its operands and results.
        values: the numbers it is specialised for.
        tables: the lowering tables.
    """
    nodes = [*_arithmetic(nodes), *nodes]
    number = _numbering(nodes, interface)
    operators = [_operator(node.target, tables) for node in nodes]
    if None in operators:
        return ""
    calls = [
        (operator, _plain(node.args, number), _plain(node.kwargs, number), describe(node))
        for operator, node in zip(operators, nodes, strict=True)
    ]
    constants = [
        (number[node], str(array.dtype), array.shape, hashlib.sha256(array.tobytes()).hexdigest())
        for node, array in interface.constants.items()
    ]
    metadata = [(i, _metadata(node.meta.get("val"))) for node, i in number.items()]
    ends = (
        [number[node] for node in interface.outputs],
        [(index, number[node]) for index, node in interface.writes],
        [len(group) for group in (interface.tensors, interface.scalars, interface.numbers)],
    )
    text = repr((calls, constants, metadata, ends, values, list(recomputed.starts(nodes))))
    if " at 0x" in text:
        return ""
    return hashlib.sha256(f"{source()}|{text}".encode()).hexdigest()


def _arithmetic(nodes: Sequence[Node]) -> list[Node]:
    """The nodes that compute the numbers of a step; they belong to no step."""
    found: dict[Node, None] = {}
    waiting = [source for node in nodes for source in node.all_input_nodes]
    while waiting:
        node = waiting.pop()
        if is_number(node) and node.op == "call_function" and node not in found:
            found[node] = None
            waiting.extend(node.all_input_nodes)
    return list(found)


def _numbering(nodes: Sequence[Node], interface: Interface) -> dict[Node, int]:
    """A number for each node, by first appearance: operands, then the step's own."""
    inputs = (*interface.tensors, *interface.scalars, *interface.numbers, *interface.constants)
    number: dict[Node, int] = {}
    for node in (*inputs, *nodes):
        for appearing in (node, *node.all_input_nodes):
            number.setdefault(appearing, len(number))
    return number


def _operator(target: Any, tables: Mapping[str, Lowering]) -> str | None:
    """The name of what a node calls; None for rows whose function only this process knows."""
    if isinstance(target, torch._ops.OpOverload):
        name = overload_name(target)
        row = tables.get(name)
        if row is None or core_tables.is_core(row) or _is_own(row):
            return name
        return f"{name}={row.cache_key}" if row.cache_key else None
    if inspect.isbuiltin(target) or inspect.isfunction(target):
        return f"{target.__module__}.{target.__qualname__}"
    return None


def _is_own(row: Lowering) -> bool:
    """Whether a row's function is of this package, so that `source` covers it."""
    return getattr(row.function, "__module__", "").startswith(f"{__package__}.")


def _plain(argument: Any, number: Mapping[Node, int]) -> Any:
    """An argument with numbers in place of nodes; overloads by name."""
    if isinstance(argument, Node):
        return ("node", number[argument])
    if isinstance(argument, (list, tuple)):
        return [_plain(item, number) for item in argument]
    if isinstance(argument, dict):
        return sorted((key, _plain(item, number)) for key, item in argument.items())
    if isinstance(argument, torch._ops.OpOverload):
        return ("overload", overload_name(argument))
    return argument


def _metadata(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (str(tuple(value.shape)), str(tuple(value.stride())), str(value.dtype))
    if isinstance(value, (list, tuple)):
        return [_metadata(item) for item in value]
    return str(value)


@functools.cache
def source() -> str:
    """A digest of this package's source: the same graph means the same only with it."""
    made = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        made.update(file.read_bytes())
    return made.hexdigest()
