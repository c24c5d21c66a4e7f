# SPDX-License-Identifier: Apache-2.0
"""Operators on lists that write pieces of one storage: one piece after the other.

`torch._foreach_mul_(buffer.split(...), 2)` is defined as a loop over its tensors. Lowered as a
loop, each piece is read from the buffer as the pieces before have left it and written where it
lies, so the buffer passes over memory once. Computed from the old buffer together, each element
of it would be a choice among all the pieces. DDP's gradients are such pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from torchtpu_core.lowering import storage_views
from torchtpu_core.lowering.storage_views import Geometry, Plan

# Bases at or below this are results of the same op (kOwnOutput in csrc/trace.h).
OWN_OUTPUT = -2


def are_written_by(node: Mapping[str, Any]) -> bool:
    """Whether a node of a trace writes several pieces of one storage, each for itself."""
    return (
        node["name"].startswith("aten::_foreach_")
        and not node["outs"]
        and any(is_update and base <= OWN_OUTPUT for _, is_update, base, _, _ in node["outputs"])
    )


def written_inputs(node: Mapping[str, Any]) -> set[int]:
    """Which of the node's inputs are the pieces."""
    _, _, kind, payload = node["args"][0]
    return set(payload) if kind == "tensors" else set()


def lower(
    node: Mapping[str, Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    starts: Sequence[Sequence[jax.Array]],
    lower_one: Callable[[int, list[Any], dict[str, Any]], jax.Array],
    write: Callable[[int, jax.Array, list[jax.Array]], jax.Array],
) -> list[jax.Array]:
    """The values of the storage after each piece.

    Args:
        node: of a trace's description.
        args: of the operator; the first are the pieces.
        kwargs: of the operator.
        starts: of the place of each piece.
        lower_one: the new value of the piece of an index, from arguments with lists of one.
        write: the storage after that piece, from its value and the storages before.
    """
    count = len(node["outputs"])
    results: list[jax.Array] = []
    for index, (geometry, is_update, base, plan, _) in enumerate(node["outputs"]):
        own = [_only(value, index, count) for value in args]
        if is_update and base <= OWN_OUTPUT:
            sizes, strides, dtype = node["written"][index]
            view = Geometry(tuple(sizes), tuple(strides), dtype)
            before = results[OWN_OUTPUT - base]
            kept = Geometry(*geometry)
            own[0] = [storage_views.read(before, kept, view, Plan(*plan), starts[index])]
        named = {name: _only(value, index, count) for name, value in kwargs.items()}
        results.append(write(index, lower_one(index, own, named), results))
    return results


def _only(value: Any, index: int, count: int) -> Any:
    """A list of one for each tensor, cut to that tensor's."""
    return [value[index]] if isinstance(value, list | tuple) and len(value) == count else value
