# SPDX-License-Identifier: Apache-2.0
"""In which order the steps of a graph run."""

from __future__ import annotations

import pytest
import torch
from torch.distributed import _functional_collectives  # noqa: F401 - its operators
from torch.fx import Graph
from torchtpu_compile.placement import Placement, steps_of
from torchtpu_core.runtime import tables

C10D = torch.ops._c10d_functional


def order_of_calls(deep: bool) -> list[str]:
    """Operators of the graph's eager calls, where the first needs a result of a program."""
    value = torch.ones(4, device="tpu")
    graph = Graph()

    def add(target, *args):
        node = graph.call_function(target, args)
        node.meta["val"] = value
        return node

    x = graph.placeholder("x")
    x.meta["val"] = value
    first = add(
        C10D.all_reduce.default, add(torch.ops.aten.sin.default, x) if deep else x, "sum", "0"
    )
    second = add(C10D.broadcast.default, x, 0, "0")
    waited = add(C10D.wait_tensor.default, second)
    third = add(C10D.all_gather_into_tensor.default, x, 1, "0")
    graph.output((first, waited, third))
    steps = steps_of(Placement(graph, tables.current()))
    called = [node.target for step in steps if step.device is None for node in step.nodes]
    return [str(target._schema.name).rpartition("::")[2] for target in called]


@pytest.mark.parametrize("deep", [False, True])
def test_collectives_keep_their_order_whatever_each_needs(deep):
    collectives = [name for name in order_of_calls(deep) if name != "wait_tensor"]
    assert collectives == ["all_reduce", "broadcast", "all_gather_into_tensor"]
