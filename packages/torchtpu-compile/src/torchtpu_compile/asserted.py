# SPDX-License-Identifier: Apache-2.0
"""Programs whose only effect is that they check something.

What has no result is not recorded, so nobody would learn what it found. Such a program returns
the condition of an assertion, which is made a value of the program for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Graph, Node

from torchtpu_compile.placement import ASSERTIONS


def own_conditions(graph: Graph) -> None:
    """Let each assertion check a value that is made right before it, in its own step."""
    for node in graph.nodes:
        if node.target in ASSERTIONS and isinstance(node.args[0], Node):
            source = node.args[0]
            with graph.inserting_before(node):
                own = graph.call_function(torch.ops.aten.clone.default, (source,))
            own.meta = dict(source.meta)
            node.replace_input_with(source, own)


def conditions(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """What to return of a step that leaves nothing: the condition of its last assertion."""
    found = [n.args[0] for n in nodes if n.target in ASSERTIONS]
    return tuple(n for n in found[-1:] if isinstance(n, Node))
