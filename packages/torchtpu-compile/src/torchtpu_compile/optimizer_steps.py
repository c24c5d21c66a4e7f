# SPDX-License-Identifier: Apache-2.0
"""Step counts of optimizers with several parameter groups.

Before Dynamo sets up a parameter group, it moves every ``step`` that it finds on the host to
its parameter's device; for CUDA that means an old state was loaded. On any other device a
count is on the host from the start: setting up the second group replaces the counts of the
first after they became operands of the graph, which then counts in tensors that the optimizer
no longer holds. They are given back to it before the graph runs.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import GraphModule
from torch.optim import Optimizer


def give_back(module: GraphModule) -> None:
    """Let optimizers hold the counts of a graph that was just traced.

    Args:
        module: Dynamo's graph, or the one AOTAutograd made of it.
    """
    held = {id(t): t for t in _held(module)}
    lost = {i: t for i, t in held.items() if t.ndim == 0 and t.device.type == "cpu"}
    if not lost:
        return
    moved: list[dict[str, Any]] = []
    for found in gc.get_objects():
        if not issubclass(type(found), Optimizer):
            continue
        states = list(_counting_states(found))
        if not any(id(state["step"]) in held for state in states):
            continue  # another graph's
        for state in states:  # the last group's: no other has been set up since
            lost.pop(id(state["step"]), None)
        moved += [s for s in states if s["step"].device.type == "tpu" and id(s["step"]) not in held]
    if len(lost) != len(moved):
        return
    for state, count in zip(moved, lost.values(), strict=True):
        if state["step"].item() == count.item():
            state["step"] = count


def _held(module: GraphModule) -> Iterable[torch.Tensor]:
    """The tensors that belong to a graph, in the order of their first use."""
    named = dict.fromkeys(n.target for n in module.graph.nodes if n.op == "get_attr")
    own = [getattr(module, str(name)) for name in named]
    context = torch._guards.TracingContext.try_get()
    flat = (context.params_flat if context is not None else None) or ()
    return [t for t in (*own, *flat) if isinstance(t, torch.Tensor)]


def _counting_states(optimizer: Optimizer) -> Iterable[dict[str, Any]]:
    """The states with a count of parameters on the device, in the order of the groups."""
    for group in getattr(optimizer, "param_groups", ()):  # it may be half made
        if group.get("capturable") or group.get("fused"):
            continue  # on the device from the start
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if parameter.device.type == "tpu" and isinstance(state.get("step"), torch.Tensor):
                yield state
