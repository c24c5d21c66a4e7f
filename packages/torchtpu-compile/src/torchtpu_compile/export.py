# SPDX-License-Identifier: Apache-2.0
"""The StableHLO of a model, without running it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import torch
from torch.utils._python_dispatch import _disable_current_modes
from torchtpu_core.lowering import checks, dtypes, layout
from torchtpu_core.runtime import tables
from torchtpu_core.tpu import init

from torchtpu_compile.decompositions import missing_rows
from torchtpu_compile.errors import GraphError, describe
from torchtpu_compile.executable import EagerStep, Executable
from torchtpu_compile.program import Program


def export_stablehlo(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str = "graph",
) -> str:
    """The text of the StableHLO module that computes ``model(*args, **kwargs)``.

    Parameters and buffers are operands, in the order of ``model.state_dict()``, before
    the tensors of `args`. Run-time index checks are left out.

    Args:
        model: a module that `torch.export` can capture.
        args: example inputs; tensors of any device, only shapes and dtypes matter.
        kwargs: further example inputs.
        name: the module's name.

    Returns:
        StableHLO, as JAX prints it.

    Raises:
        GraphError: an op has no lowering for the device, or draws random numbers.
    """
    init()
    executable = _capture(model, tuple(args), dict(kwargs or {}), name)
    for step in executable.steps:
        if isinstance(step, EagerStep):
            raise GraphError(
                f"{describe(step.nodes[0])} has no lowering for the device, so the model is not "
                "one program. Replace the op, or register a lowering for it with the hook "
                "torchtpu_register_lowerings."
            )
    if len(executable.programs) != 1:
        raise GraphError(f"the model computes nothing on tensors, so there is no program {name!r}.")
    if executable.programs[0].random_ops:
        raise GraphError(
            "the model draws random numbers, whose state an exported program has no operand for. "
            "Call model.eval() before, or take the random op out."
        )
    return _lowered_text(executable, name)


def _capture(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> Executable:
    state = [*model.parameters(), *model.buffers()]
    if any(t.device.type != "tpu" for t in state):
        model = copy.deepcopy(model).to("tpu")
    with torch.no_grad():
        exported = torch.export.export(model, _moved(args), _moved(kwargs))
        exported = exported.run_decompositions(missing_rows(tables.current()))
    with _disable_current_modes():
        return Executable(name, exported.graph_module, tables.current())


def _moved(tree: Any) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to("tpu"), tree)


def _lowered_text(executable: Executable, name: str) -> str:
    program: Program = executable.programs[0]
    tensors = program.interface.tensors
    inputs = [n for n in executable.inputs if n in tensors]
    inputs += [n for n in tensors if n not in inputs]  # constants too large to be compiled in
    operands = [
        jax.ShapeDtypeStruct(tuple(node.meta["val"].shape), dtypes.to_numpy(node.meta["val"].dtype))
        for node in inputs
    ]

    def function(*arrays: jax.Array) -> Any:
        with checks.collecting(), layout.remembering():
            given = dict(zip(inputs, arrays, strict=True))
            return program.function()([given[node] for node in tensors])

    function.__name__ = "".join(c if c.isalnum() else "_" for c in name)
    with jax.enable_x64(True):
        return jax.jit(function, keep_unused=True).lower(*operands).as_text()
