# SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing in one program: what the backward pass computes again stays there.

XLA computes equal work once. A program that holds a forward pass and its recomputation would keep
all that the recomputation is there to drop, unless a barrier hides that both have equal operands;
and it would compute all of it at the start of the backward pass, unless the barrier waits for the
gradient that comes in there. `jax.checkpoint` does the same. XLA:CPU drops barriers too early
(jaxlib 0.10.2): there Fused Eager starts a new program instead (`csrc/recomputation.h`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from torchtpu_core.lowering import layout

Node = Mapping[str, Any]
Place = tuple[Any, ...]


def starts(nodes: Sequence[Node], index: int) -> bool:
    """Whether recomputation starts with a node of a trace, after something else."""
    return index > 0 and _is_again(nodes[index]) and not _is_again(nodes[index - 1])


def hold_back(
    nodes: Sequence[Node],
    index: int,
    operands: list[jax.Array],
    results: Sequence[list[jax.Array]],
) -> None:
    """Replaces what recomputation reads by itself behind a barrier, in place.

    Args:
        nodes: of a described trace.
        index: of the node with which recomputation starts.
        operands: of the trace.
        results: of the nodes before it.
    """
    places = list(dict.fromkeys(_read(nodes, index)))
    lists = [operands if kind == "operand" else results[rest[0]] for kind, *rest in places]
    held = [values[place[-1]] for values, place in zip(lists, places, strict=True)]
    for values, place, value in zip(lists, places, late(held, results[index - 1]), strict=True):
        values[place[-1]] = value


def late(held: Sequence[jax.Array], after: Sequence[jax.Array]) -> list[jax.Array]:
    """The same values, as if they were known only after others are."""
    rows = [layout.as_rows(value) for value in held], [layout.as_rows(value) for value in after]
    values, _ = jax.lax.optimization_barrier(rows)
    return [jax.lax.reshape(row, value.shape) for row, value in zip(values, held, strict=True)]


def _is_again(node: Node) -> bool:
    return bool(node.get("recomputed"))


def _read(nodes: Sequence[Node], index: int) -> Iterator[Place]:
    """Places from before `index` that the nodes from there to the recomputation's end read."""
    for node in nodes[index:]:
        if not _is_again(node):
            return
        for place, *_ in node["inputs"]:
            if place is not None and (place[0] == "operand" or place[1] < index):
                yield place
