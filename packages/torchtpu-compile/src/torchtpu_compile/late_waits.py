# SPDX-License-Identifier: Apache-2.0
"""Waits for collectives come after the work that needs none of their results.

Dynamo puts a wait right behind its collective, and the host that waits calls no programs. So
products of matrices and the like, with what they need, go before it. Other operators stay: they
are cheap within the program of what reads them, and would be results of one of their own here.

Collectives keep their order, since other ranks call them in that order too. They go before the
wait as well, unless what it waits for is larger than what each rank gave (`all_gather`): those of
all layers together would be the whole model in memory.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator

from torch.fx import Graph, Node

from torchtpu_compile.placement import is_barrier, is_collective, is_wait

#: How many nodes behind a wait are looked at.
_REACH = 1000


def postpone(graph: Graph) -> None:
    """Change the order of a graph's nodes."""
    for wait in [node for node in reversed(graph.nodes) if is_wait(node) and node.users]:
        call = wait.args[0]
        if isinstance(call, Node) and call.target is operator.getitem:
            call = call.args[0]
        if isinstance(call, Node) and is_collective(call) and not is_barrier(call):
            for node in _before(wait, call):
                wait.prepend(node)


def _before(wait: Node, call: Node) -> list[Node]:
    """What may run while a collective is under way, in order."""
    from torch.utils.flop_counter import flop_registry

    kept = "all_gather" in call.target._schema.name  # type: ignore[union-attr]
    stay, free = {wait}, []
    worth: set[Node] = set()
    for node in itertools.islice(_following(wait), _REACH):
        if node.op == "output" or (is_barrier(node) and not is_wait(node)):
            break
        collective = is_collective(node)
        if not stay.isdisjoint(node.all_input_nodes) or (collective and kept):
            stay.add(node)
            kept |= collective
            continue
        free.append(node)
        if collective or getattr(node.target, "overloadpacket", None) in flop_registry:
            worth.add(node)
    for node in reversed(free):
        if node in worth:
            worth.update(node.all_input_nodes)
    return [node for node in free if node in worth]


def _following(node: Node) -> Iterator[Node]:
    while True:
        node = node.next
        yield node
