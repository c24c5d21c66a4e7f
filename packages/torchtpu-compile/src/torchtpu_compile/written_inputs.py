# SPDX-License-Identifier: Apache-2.0
"""What is read of an input that its graph writes, by the backward graph or by another write.

The partitioner takes an input for unchanged. It may hand the input itself to the backward graph,
or let that compute again what was made of it; either would read what was written.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from torchtpu_compile.placement import is_input_write


def save_readers(joint: GraphModule) -> None:
    """Keep the backward pass from computing again what reads an input before it is written.

    Args:
        joint: forward and backward in one graph, before it is partitioned.
    """
    for write in filter(is_input_write, joint.graph.nodes):
        for user in write.args[0].users:
            if user is not write and isinstance(user.meta.get("val"), torch.Tensor):
                user.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def save_values(forward: GraphModule, count: int) -> None:
    """Give the backward graph a copy of an input as it was, where it was to get the input.

    For graphs whose partition is not ours.

    Args:
        forward: the forward graph; its output node is changed.
        count: how many of its results the user sees; the backward graph gets the others.
    """
    written = {n.args[0]: n for n in reversed(forward.graph.nodes) if is_input_write(n)}
    output = next(n for n in reversed(forward.graph.nodes) if n.op == "output")
    results = list(output.args[0])
    for index in range(count, len(results)):
        node = results[index]
        if isinstance(node, Node) and node in written:
            with forward.graph.inserting_before(written[node]):
                results[index] = forward.graph.call_function(torch.ops.aten.clone.default, (node,))
            results[index].meta = dict(node.meta)
    output.args = (results,)


def read_first(graph: Graph) -> None:
    """Give a written input the value that another one has before it is written itself.

    Inputs that change places: Inductor takes the copy between the two writes out, and they would
    run one after the other.
    """
    writes = [node for node in graph.nodes if is_input_write(node)]
    written = {node.args[0] for node in writes}
    for node in writes:
        value = node.args[1]
        if isinstance(value, Node) and value in written:
            with graph.inserting_before(writes[0]):
                own = graph.call_function(torch.ops.aten.clone.default, (value,))
            own.meta = dict(value.meta)
            node.update_arg(1, own)
