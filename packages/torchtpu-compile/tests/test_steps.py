# SPDX-License-Identifier: Apache-2.0
"""In which order the steps of a graph run."""

from __future__ import annotations

import pytest
import torch
from torch.distributed import _functional_collectives  # noqa: F401 - its operators
from torch.fx import Graph
from torchtpu_compile import late_waits
from torchtpu_compile.placement import Placement, steps_of
from torchtpu_core.runtime import tables

C10D, ATEN = torch.ops._c10d_functional, torch.ops.aten


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


class _Drawn:
    """A graph of values of four by four, drawn node by node."""

    def __init__(self) -> None:
        self.value = torch.ones(4, 4, device="tpu")
        self.graph = Graph()
        self.x = self.graph.placeholder("x")
        self.x.meta["val"] = self.value

    def add(self, target, *args):
        node = self.graph.call_function(target, args)
        node.meta["val"] = self.value
        return node

    def waited(self, target, *args):
        return self.add(C10D.wait_tensor.default, self.add(target, *args))

    def steps(self, *results) -> list[list[str]]:
        self.graph.output(results)
        late_waits.postpone(self.graph)
        self.graph.lint()
        found = steps_of(Placement(self.graph, tables.current()))
        return [
            [str(node.target._schema.name).rpartition("::")[2] for node in s.nodes] for s in found
        ]


def test_products_that_need_nothing_of_a_collective_run_between_it_and_its_wait():
    d = _Drawn()
    reduced = d.add(ATEN.sin.default, d.waited(C10D.all_reduce.default, d.x, "sum", "0"))
    product = d.add(ATEN.mm.default, d.x, d.add(ATEN.exp.default, d.x))
    total = d.add(ATEN.add.Tensor, reduced, d.add(ATEN.cos.default, product))
    assert d.steps(total) == [
        ["all_reduce"],
        ["exp", "mm"],
        ["wait_tensor"],
        ["sin", "cos", "add"],
    ]


def test_each_reduction_is_called_before_the_products_of_the_next():
    d = _Drawn()
    gradient, results = d.x, []
    for _ in range(3):
        gradient = d.add(ATEN.mm.default, gradient, gradient)
        results.append(d.waited(C10D.all_reduce.default, gradient, "sum", "0"))
    calls = [name for step in d.steps(*results) for name in step]
    assert calls == ["mm", "all_reduce"] * 3 + ["wait_tensor"] * 3


def test_what_all_gather_makes_larger_is_asked_for_layer_by_layer():
    d = _Drawn()
    value = d.x
    for _ in range(2):
        weight = d.waited(C10D.all_gather_into_tensor.default, d.x, 1, "0")
        value = d.add(ATEN.mm.default, value, weight)
    calls = [name for step in d.steps(value) for name in step]
    assert calls.index("wait_tensor") < len(calls) - 1 - calls[::-1].index("all_gather_into_tensor")


def test_effects_stay_behind_the_wait_that_they_come_after():
    d = _Drawn()
    reduced = d.waited(C10D.all_reduce.default, d.x, "sum", "0")
    written = d.add(C10D.all_reduce_.default, d.x, "sum", "0")
    product = d.add(ATEN.mm.default, written, written)
    calls = [name for step in d.steps(reduced, product) for name in step]
    assert calls == ["all_reduce", "wait_tensor", "all_reduce_", "mm"]
