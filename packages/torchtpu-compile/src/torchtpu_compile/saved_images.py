# SPDX-License-Identifier: Apache-2.0
"""What the forward pass saves of images, in the order in which programs hold them.

Inside a program images have their channels last (`torchtpu_core.lowering.channel_order`).
The forward and the backward pass are two programs: what one saves for the other would be
put into PyTorch's order and back. So the forward graph saves a channels-last tensor, and
the backward graph begins with a view of it; both cost nothing there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torchtpu_core.lowering.channel_order import MIN_CONVOLUTIONS

_LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}
_CONVOLUTIONS = (torch.ops.aten.convolution.default, torch.ops.aten._convolution.default)


def keep_channels_last(forward: GraphModule, backward: GraphModule, user_outputs: int) -> None:
    """Change both graphs, where the forward one has enough convolutions to gain.

    Args:
        forward: as partitioned; its results are the user's, then the saved ones.
        backward: its inputs are named after the saved results.
        user_outputs: number of the forward graph's results that are not saved ones.
    """
    if sum(node.target in _CONVOLUTIONS for node in forward.graph.nodes) < MIN_CONVOLUTIONS:
        return
    output = next(n for n in reversed(forward.graph.nodes) if n.op == "output")
    results = list(output.args[0])
    inputs = {n.name: n for n in backward.graph.nodes if n.op == "placeholder"}
    images = _images(forward.graph)
    kept = results[:user_outputs]
    for index in range(user_outputs, len(results)):
        node = results[index]
        if not isinstance(node, Node) or node not in images or node in kept:
            continue
        if node.name not in inputs or results.count(node) > 1:
            continue
        results[index] = _stored(forward.graph, node, before=output)
        _restore(backward.graph, inputs[node.name], results[index].meta["val"])
    output.args = (results, *output.args[1:])
    for module in (forward, backward):
        module.graph.lint()
        module.recompile()


def _images(graph: Graph) -> set[Node]:
    """Results of convolutions, and values of their batch and channels computed from them."""
    channels: dict[Node, tuple[int, ...]] = {}
    images: set[Node] = set()
    for node in graph.nodes:
        value = node.meta.get("val")
        sources = {channels[n] for n in node.all_input_nodes if n in channels}
        if isinstance(value, (tuple, list)) and sources:
            channels[node] = next(iter(sources))  # its items are asked for one by one
        elif _is_image(value) and (node.target in _CONVOLUTIONS or value.shape[:2] in sources):
            channels[node] = tuple(value.shape[:2])
            images.add(node)
    return images


def _is_image(value: Any) -> bool:
    """Whether a value is a batch of images or volumes of fixed sizes, without gaps in memory."""
    if not isinstance(value, torch.Tensor) or value.ndim not in _LAYOUTS:
        return False
    if not all(isinstance(n, int) for n in value.shape):
        return False
    return value.is_contiguous() or value.is_contiguous(memory_format=_LAYOUTS[value.ndim])


def _stored(graph: Graph, node: Node, before: Node) -> Node:
    order = (0, *range(2, node.meta["val"].ndim), 1)
    with graph.inserting_before(before):
        moved = _call(graph, torch.ops.aten.permute.default, node, list(order))
        return _call(
            graph, torch.ops.aten.clone.default, moved, memory_format=torch.contiguous_format
        )


def _restore(graph: Graph, stored: Node, value: torch.Tensor) -> None:
    stored.meta["val"] = value
    stored.meta.pop("tensor_meta", None)
    with graph.inserting_after(stored):
        order = (0, value.ndim - 1, *range(1, value.ndim - 1))
        image = _call(graph, torch.ops.aten.permute.default, stored, list(order))
    stored.replace_all_uses_with(image, delete_user_cb=lambda user: user is not image)


def _call(graph: Graph, target: Any, source: Node, *args: Any, **kwargs: Any) -> Node:
    node = graph.call_function(target, (source, *args), kwargs)
    value = source.meta["val"]
    with value.fake_mode:
        node.meta["val"] = target(value, *args, **kwargs)
    return node
