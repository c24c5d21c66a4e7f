# SPDX-License-Identifier: Apache-2.0
"""What a backward graph computes again, so that the forward graph need not save it.

Dynamo marks the operators of a region under `torch.utils.checkpoint`; AOTAutograd's partitioner
puts those that the backward graph needs next to their first use. XLA would nevertheless compute
all of them first, as they wait for no gradient: `torchtpu_core.runtime.recomputation` says what is
done about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
from torch.fx import Node
from torchtpu_core.runtime import recomputation

from torchtpu_compile.placement import is_number, viewed


def starts(nodes: Sequence[Node]) -> Iterator[int]:
    """Positions at which recomputation starts, after work of the backward pass."""
    after_gradients = False
    for index, node in enumerate(nodes):
        if node.op != "call_function" or is_number(node) or viewed(node) is not None:
            continue
        if after_gradients and _is_again(node):
            yield index
        after_gradients = node.meta.get("partitioner_tag") == "is_backward"


class Barriers:
    """The barriers of a step.

    Args:
        nodes: the step's nodes, in order.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._at = {nodes[i]: (_read(nodes, i), nodes[i - 1]) for i in starts(nodes)}

    def hold_back(self, node: Node, env: dict[Node, Any]) -> None:
        """If recomputation starts with a node, puts what it reads behind a barrier."""
        if node not in self._at:
            return
        sources, before = self._at[node]
        held = [source for source in sources if isinstance(env.get(source), jax.Array)]
        arrays = recomputation.late([env[source] for source in held], jax.tree.leaves(env[before]))
        env.update(zip(held, arrays, strict=True))


def _is_again(node: Node) -> bool:
    """Whether a node of the forward pass is under `torch.utils.checkpoint`."""
    meta = node.meta
    return meta.get("recompute") is not None and meta.get("partitioner_tag") == "is_forward"


def _read(nodes: Sequence[Node], start: int) -> list[Node]:
    """What the nodes of one recomputation read of what was there before."""
    inside: set[Node] = set()
    found: dict[Node, None] = {}
    for node in nodes[start:]:
        if not _is_again(node):
            break
        found.update(dict.fromkeys(n for n in node.all_input_nodes if n not in inside))
        inside.add(node)
    return list(found)
