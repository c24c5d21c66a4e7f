# SPDX-License-Identifier: Apache-2.0
"""On which device a graph makes tensors from nothing, where several are in use.

A call such as ``ones(2, device="tpu")`` makes its result on the device that is current when it
runs. In a graph it ran while another was current, if the script says ``with torch.tpu.device(1)``;
AOTAutograd drops the change of devices, and only the traced result tells. Where nothing of the
kind was said, the call keeps following the device that is current when the graph runs.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.fx import Graph, Node

from torchtpu_compile.placement import tensors_of


def annotate(graph: Graph) -> None:
    """Name the device in calls that were traced while another device was current."""
    current = torch.accelerator.current_device_index()
    for node in graph.nodes:
        named = node.kwargs.get("device")
        if not isinstance(named, torch.device) or named.type != "tpu" or named.index is not None:
            continue
        for tensor in tensors_of(node):
            if tensor.device.index != current:
                node.kwargs = {**node.kwargs, "device": tensor.device}


def named_device(nodes: Iterable[Node]) -> int | None:
    """Index of the device that one of the calls names, if one does."""
    for node in nodes:
        named = node.kwargs.get("device")
        if isinstance(named, torch.device) and named.type == "tpu" and named.index is not None:
            return named.index
    return None
