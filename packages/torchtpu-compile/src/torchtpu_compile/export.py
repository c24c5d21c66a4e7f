# SPDX-License-Identifier: Apache-2.0
"""The StableHLO of a model, without running it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.utils._python_dispatch import _disable_current_modes
from torchtpu_core.lowering import checks, dtypes, layout
from torchtpu_core.lowering.rng import Rng
from torchtpu_core.runtime import clients, tables
from torchtpu_core.tpu import init

from torchtpu_compile.decompositions import missing_rows
from torchtpu_compile.errors import GraphError, describe, line_of
from torchtpu_compile.executable import EagerStep, Executable
from torchtpu_compile.program import Program

#: Key in a captured module's ``meta``: the exported program it is from.
EXPORTED = "torchtpu_exported"


def export_stablehlo(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str = "graph",
    path: str | Path | None = None,
) -> str:
    """The text of the StableHLO module that computes ``model(*args, **kwargs)``.

    Parameters and buffers are operands, in the order of ``model.state_dict()``, before
    the tensors of `args`. Run-time index checks are left out. Operations carry the
    model's file and line as their location.

    Args:
        model: a module that `torch.export` can capture.
        args: example inputs; tensors of any device, only shapes and dtypes matter.
        kwargs: further example inputs.
        name: the module's name.
        path: also write the module to this file: text for ``.mlir``, portable bytecode,
            which StableHLO's compatibility promise covers, for ``.mlirbc``.

    Returns:
        StableHLO, as JAX prints it.

    Raises:
        GraphError: an op has no lowering for the device, or draws random numbers.
    """
    if path is not None and Path(path).suffix not in (".mlir", ".mlirbc"):
        raise ValueError(
            f"{path} is neither .mlir (text) nor .mlirbc (portable bytecode). Give the file one "
            "of these suffixes."
        )
    lowered = lower(one_program(model, args, kwargs, name), name)
    text: str = lowered.as_text(debug_info=True)
    if path is not None and Path(path).suffix == ".mlir":
        Path(path).write_text(text)
    elif path is not None:
        Path(path).write_bytes(_bytecode(lowered))
    return text


def one_program(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None, name: str
) -> Executable:
    """The model captured as one program.

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
    _refuse_open_sizes(executable)
    program = executable.programs[0]
    drawing = [n for n in program.nodes if program.draws(n) and not _without_dropout(n)]
    if drawing:
        raise GraphError(
            f"the model draws random numbers in {describe(drawing[0])}, and an exported program "
            "has no operand for their state. Call model.eval() before, or take the op out."
        )
    return executable


def _refuse_open_sizes(executable: Executable) -> None:
    for node in executable.inputs:
        sizes = list(node.meta["val"].shape) if isinstance(node.meta["val"], torch.Tensor) else []
        if any(isinstance(size, torch.SymInt) for size in sizes):
            raise GraphError(
                f"the argument {node.name} has open sizes {sizes}, and an exported program has the "
                "sizes of its example. Leave torch._dynamo.mark_dynamic out and export once for "
                "each size, or use torch.compile, whose programs serve many sizes."
            )


def _without_dropout(node: torch.fx.Node) -> bool:
    """Whether a random op is attention that drops nothing."""
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    if "dropout_p" not in names:
        return False
    place = names.index("dropout_p")
    given = node.args[place] if place < len(node.args) else node.kwargs.get("dropout_p", 0.0)
    return given == 0.0


def _capture(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> Executable:
    state = [*model.parameters(), *model.buffers()]
    if any(t.device.type != "tpu" for t in state):
        model = copy.deepcopy(model).to("tpu")
    with torch.no_grad():
        try:
            exported = torch.export.export(model, _moved(args), _moved(kwargs))
        except Exception as error:
            raise _not_one_graph(name, error) from error
        exported = exported.run_decompositions(missing_rows(tables.current()))
    with _disable_current_modes():
        executable = Executable(name, exported.graph_module, tables.current())
    executable.module.meta[EXPORTED] = exported
    return executable


def _not_one_graph(name: str, error: Exception) -> GraphError:
    """What torch.export could not do, with the user's line and the fix if it asks for values."""
    text = f"the model {name!r} cannot be captured as one graph{line_of(error)}: "
    if "data-dependent" in str(error):
        return GraphError(
            text + "the line asks for the values of a tensor, in a branch or by .item(). Use "
            "torch.where or torch.cond there, or torch.compile, which breaks the graph."
        )
    return GraphError(f"{text}{type(error).__name__}: {str(error).partition(chr(10))[0]}")


def _moved(tree: Any) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to("tpu"), tree)


def operands_of(executable: Executable) -> list[torch.fx.Node]:
    """The operands of an exported program, in order."""
    tensors = executable.programs[0].interface.tensors
    inputs = [n for n in executable.inputs if n in tensors]
    return inputs + [n for n in tensors if n not in inputs]  # constants too large to compile in


def lower(executable: Executable, name: str) -> Any:
    """The one program of a captured model, lowered by JAX."""
    program: Program = executable.programs[0]
    inputs = operands_of(executable)
    operands = structs_of(inputs)
    # Without a device, JAX starts every backend it finds to choose one; libtpu's fails after
    # seconds where there is no TPU. (A sharding of the operands would be written in the module.)
    with jax.enable_x64(True), jax.default_device(clients.devices()[0]):
        return jax.jit(function_of(program, inputs, name), keep_unused=True).lower(*operands)


def structs_of(inputs: Sequence[torch.fx.Node]) -> list[jax.ShapeDtypeStruct]:
    """Shape and dtype of operands."""
    values = [node.meta["val"] for node in inputs]
    return [jax.ShapeDtypeStruct(tuple(v.shape), dtypes.to_numpy(v.dtype)) for v in values]


def function_of(program: Program, inputs: Sequence[torch.fx.Node], name: str) -> Any:
    """The program as a function on arrays, one per input."""

    def function(*arrays: jax.Array) -> Any:
        with checks.collecting(), layout.remembering():
            given = dict(zip(inputs, arrays, strict=True))
            operands = [given[node] for node in program.interface.tensors]
            if not program.random_ops:
                return program.function()(operands)
            return program.function()(operands, rng=Rng(jnp.uint64(0), jnp.uint64(0)))

    function.__name__ = "".join(c if c.isalnum() else "_" for c in name)
    return function


def _bytecode(lowered: Any) -> bytes:
    from jaxlib.mlir.dialects import stablehlo
    from jaxlib.mlir.passmanager import PassManager

    module = lowered.compiler_ir("stablehlo")
    version = stablehlo.get_minimum_version()
    stablehlo.register_stablehlo_passes()
    with module.context:
        # Only StableHLO itself is portable; JAX leaves functions like erf in CHLO.
        PassManager.parse("builtin.module(func.func(chlo-legalize-to-stablehlo))").run(
            module.operation
        )
        return bytes(stablehlo.serialize_portable_artifact(module, version))
