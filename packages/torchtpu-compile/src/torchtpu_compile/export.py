# SPDX-License-Identifier: Apache-2.0
"""The StableHLO of a model, without running it."""

from __future__ import annotations

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
        GraphError: an op has no lowering for the device.
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
    return _lowered_text(executable.programs[0], name)


def _capture(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> Executable:
    with torch.no_grad():
        exported = torch.export.export(model.to("tpu"), _moved(args), _moved(kwargs))
        exported = exported.run_decompositions(missing_rows(tables.current()))
    with _disable_current_modes():
        return Executable(name, exported.graph_module, tables.current())


def _moved(tree: Any) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to("tpu"), tree)


def _lowered_text(program: Program, name: str) -> str:
    operands = [
        jax.ShapeDtypeStruct(
            tuple(node.meta["val"].shape), dtypes.to_numpy(node.meta["val"].dtype)
        )
        for node in program.interface.tensors
    ]

    def function(*arrays: jax.Array) -> Any:
        with checks.collecting(), layout.remembering():
            return program.function()(arrays)

    function.__name__ = "".join(c if c.isalnum() else "_" for c in name)
    with jax.enable_x64(True):
        return jax.jit(function, keep_unused=True).lower(*operands).as_text()
