# SPDX-License-Identifier: Apache-2.0
"""The StableHLO of a model, without running it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.export.exported_program import ExportedProgram
from torch.utils._python_dispatch import _disable_current_modes
from torchtpu_core.lowering import checks, dtypes, layout
from torchtpu_core.lowering.interpreter import overload_name
from torchtpu_core.lowering.promotion import Scalar
from torchtpu_core.lowering.rng import Rng
from torchtpu_core.lowering.table import Kind
from torchtpu_core.runtime import clients, tables
from torchtpu_core.tpu import init

from torchtpu_compile import ahead_sizes, capture, exported_programs
from torchtpu_compile.bounded_program import Variant
from torchtpu_compile.errors import GraphError, describe, line_of
from torchtpu_compile.executable import CAPTURED, Executable
from torchtpu_compile.graph_steps import EagerStep
from torchtpu_compile.placement import tensors_of
from torchtpu_compile.program import Program
from torchtpu_compile.step_builder import host_array

#: What a module leaves to a function of the host's XLA, such as LAPACK's.
_CUSTOM_CALL = re.compile(r"stablehlo\.custom_call @(\w+)")
#: Errors of run-time checks.
Messages = list[tuple[type[Exception], str]]


def export_stablehlo(
    model: torch.nn.Module | ExportedProgram,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str = "graph",
    path: str | Path | None = None,
) -> str:
    """The text of the StableHLO module that computes ``model(*args, **kwargs)``.

    The parameters and buffers that the model reads are operands, once each and in the order of
    ``model.state_dict()``, before the tensors of `args` that it reads; other tensors of the model
    are constants. Results are the new values of buffers and arguments that the model writes, then
    the tensors that it returns. Run-time index checks are left out. Operations carry the model's
    file and line as their location.

    Args:
        model: a module that `torch.export` can capture, or what it made of one.
        args: example inputs; tensors of any device, only shapes and dtypes matter. Left out for
            an `ExportedProgram`, which has its own.
        kwargs: further example inputs.
        name: the module's name.
        path: also write the module to this file: text for ``.mlir``, portable bytecode,
            which StableHLO's compatibility promise covers, for ``.mlirbc``.

    Returns:
        StableHLO, as JAX prints it.

    Raises:
        TypeError: the model is no module and no ExportedProgram, or its arguments are not in a
            tuple and a dict.
        GraphError: an op has no lowering for the device, or draws random numbers, or the file
            shall be bytecode and an op is a call that only the host's XLA knows.
    """
    if path is not None and Path(path).suffix not in (".mlir", ".mlirbc"):
        raise ValueError(
            f"{path} is neither .mlir (text) nor .mlirbc (portable bytecode). Give the file one "
            "of these suffixes."
        )
    args, kwargs = exported_programs.example_of(model, args, kwargs)
    executable = one_program(model, args, kwargs, name)
    _refuse_open_sizes(executable)
    _refuse_draws(executable.programs[0])
    lowered = lower(executable, name)
    text: str = lowered.as_text(debug_info=True)
    if path is not None and Path(path).suffix == ".mlir":
        Path(path).write_text(text)
    elif path is not None:
        Path(path).write_bytes(_bytecode(lowered))
    return text


def one_program(
    model: torch.nn.Module | ExportedProgram,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    name: str,
    dynamic_shapes: Any = None,
) -> Executable:
    """The model captured as one program, or one per size where sizes are open.

    Raises:
        TypeError: the model is no module, or its arguments are not in a tuple and a dict.
        GraphError: an op has no lowering for the device.
    """
    _refuse_other_kinds(model, args, kwargs)
    init()
    executable = _capture(model, tuple(args), dict(kwargs), name, dynamic_shapes)
    for step in executable.steps:
        if isinstance(step, EagerStep):
            raise GraphError(f"{describe(step.nodes[0])} {_why_apart(step.nodes[0])}")
    if len(executable.programs) != 1:
        raise GraphError(f"the model computes nothing on tensors, so there is no program {name!r}.")
    return executable


def _refuse_draws(program: Program) -> None:
    drawing = [n for n in program.nodes if program.draws(n) and not _without_dropout(n)]
    if drawing:
        raise GraphError(
            f"the model draws random numbers in {describe(drawing[0])}, and an exported program "
            "has no operand for their state. Call model.eval() before, or take the op out."
        )


def _refuse_other_kinds(model: Any, args: Any, kwargs: Any) -> None:
    if not isinstance(model, (torch.nn.Module, ExportedProgram)):
        raise TypeError(
            f"the model is a {type(model).__name__}, but only a torch.nn.Module or what "
            "torch.export made of one can be exported. Call it in the forward() of one."
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            "the model is TorchScript, which torch.export does not capture. Give the module that "
            "it was made from."
        )
    if not isinstance(args, (tuple, list)):
        raise TypeError(
            f"the example arguments are a {type(args).__name__}, not a tuple. Put them in one, "
            "such as (x,) for one tensor."
        )
    if not isinstance(kwargs, Mapping):
        raise TypeError(
            f"the keyword arguments are a {type(kwargs).__name__}, not a dict from names to values."
        )


def _why_apart(node: torch.fx.Node) -> str:
    """Why a program cannot hold a node, and what to do."""
    target = node.target
    row = tables.current().get(overload_name(target)) if _is_aten(target) else None
    if target is torch.ops.aten._local_scalar_dense.default:
        return (
            "asks for the value of a tensor, which a program only has when it runs. Keep it a "
            "tensor, or make it a plain argument of the model."
        )
    if row is not None and any(t.device.type == "cpu" for t in tensors_of(node)):
        return (
            "makes a tensor on the CPU, and a program runs on the device. Make it on the device of "
            "an argument, such as with device=x.device."
        )
    if row is not None and row.kind is not Kind.HOST:
        return (
            "has a result whose size depends on values, and a program has fixed sizes. Use a form "
            "of fixed size, such as torch.where instead of a mask as an index."
        )
    return (
        "has no lowering for the device, so the model is not one program. Replace the op, or "
        "register a lowering for it with the hook torchtpu_register_lowerings."
    )


def _is_aten(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target.namespace == "aten"


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
    model: torch.nn.Module | ExportedProgram,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    name: str,
    dynamic_shapes: Any,
) -> Executable:
    shapes = None
    if isinstance(model, torch.nn.Module):
        shapes = ahead_sizes.declared(model, args, kwargs, dynamic_shapes)
    try:
        found = capture.captured(model, args, kwargs, shapes)
    except Exception as error:
        raise _not_one_graph(name, error) from error
    module = found.exported.graph_module
    module.meta[CAPTURED] = found
    with _disable_current_modes():
        return Executable(name, module, tables.current())


def _not_one_graph(name: str, error: Exception) -> GraphError:
    """What torch.export could not do, with the user's line and the fix if it asks for values."""
    if isinstance(error, GraphError):
        return error
    text = f"the model {name!r} cannot be captured as one graph{line_of(error)}: "
    if "data-dependent" in str(error):
        return GraphError(
            text + "the line asks for the values of a tensor, in a branch or by .item(). Use "
            "torch.where or torch.cond there, or torch.compile, which breaks the graph."
        )
    message = str(error)
    if message.startswith("Constraints violated"):  # what follows says which sizes it can have
        return GraphError(text + message.partition("\n\nThe error above")[0])
    return GraphError(f"{text}{type(error).__name__}: {message.partition(chr(10))[0]}")


def operands_of(executable: Executable) -> list[torch.fx.Node]:
    """The operands of an exported program, in order: what it reads or hands through."""
    tensors = executable.programs[0].interface.tensors
    inputs = [n for n in executable.inputs if n in tensors or n in executable.outputs]
    inputs = [n for n in inputs if isinstance(n.meta["val"], torch.Tensor)]
    return inputs + [n for n in tensors if n not in inputs]  # constants too large to compile in


def lower(executable: Executable, name: str) -> Any:
    """The one program of a captured model, lowered by JAX, with the model's results."""
    held = _constants(executable)
    inputs = operands_of(executable)
    program = function_of(executable.programs[0], inputs, name)
    made = executable.programs[0].interface.outputs

    def function(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        # Nothing draws; here and not outside, where JAX would make these uint32.
        draws = [jnp.uint64(0)] * 2 if executable.programs[0].random_ops else []
        given = {node: jnp.asarray(value) for node, value in held.items()}
        given.update(zip((n for n in inputs if n not in held), arrays, strict=True))
        found = given | dict(zip(made, program(*(given[n] for n in inputs), *draws), strict=False))
        return tuple(found[node] for node in executable.outputs if node in found)

    function.__name__ = program.__name__
    operands = structs_of([n for n in inputs if n not in held])
    # Without a device, JAX starts every backend it finds to choose one; libtpu's fails after
    # seconds where there is no TPU. (A sharding of the operands would be written in the module.)
    with jax.enable_x64(True), jax.default_device(clients.devices()[0]):
        return jax.jit(function, keep_unused=True).lower(*operands)


def _constants(executable: Executable) -> dict[torch.fx.Node, Any]:
    """The values of operands that are neither parameters nor buffers nor arguments."""
    exported = executable.module.meta[CAPTURED].exported
    names = exported.graph_signature.inputs_to_lifted_tensor_constants
    return {
        node: host_array(exported.constants[names[node.name]].cpu())
        for node in executable.inputs
        if node.name in names
    }


def structs_of(inputs: Sequence[torch.fx.Node]) -> list[jax.ShapeDtypeStruct]:
    """Shape and dtype of operands."""
    values = [node.meta["val"] for node in inputs]
    return [jax.ShapeDtypeStruct(tuple(v.shape), dtypes.to_numpy(v.dtype)) for v in values]


def function_of(
    program: Program,
    inputs: Sequence[torch.fx.Node],
    name: str,
    messages: Messages | None = None,
    variant: Variant | None = None,
) -> Any:
    """The program as a function on arrays, one per input.

    After the inputs it takes the words of each open size of `variant` and, if the program draws
    random numbers, seed and offset of their stream. With `messages` its run-time checks are one
    more result, `(checks,)` bool of those that failed, if it has any; tracing it puts their
    errors there.
    """
    run = program.function() if variant is None else variant.function
    open_sizes = 0 if variant is None else variant.scalars

    def function(*arrays: jax.Array) -> Any:
        with checks.collecting() as collected, layout.remembering():
            given = dict(zip(inputs, arrays, strict=False))
            more = arrays[len(inputs) :]
            scalars = [Scalar(int, words) for words in more[:open_sizes]]
            drawn = {"rng": Rng(*more[open_sizes:])} if program.random_ops else {}
            results = run([given[node] for node in program.interface.tensors], *scalars, **drawn)
            if messages is None or not collected.messages:
                return results
            messages[:] = [(error, text) for error, text, _ in collected.messages]
            return (*results, checks.failed(collected.conditions))

    function.__name__ = "".join(c if c.isalnum() else "_" for c in name)
    return function


def _bytecode(lowered: Any) -> bytes:
    from jaxlib.mlir.dialects import stablehlo
    from jaxlib.mlir.passmanager import PassManager

    module = lowered.compiler_ir("stablehlo")
    # What readers of the last three months know: older forms lack batched gathers.
    version = stablehlo.get_version_from_compatibility_requirement(
        stablehlo.StablehloCompatibilityRequirement.WEEK_12
    )
    stablehlo.register_stablehlo_passes()
    with module.context as context:
        said: list[str] = []

        def hear(diagnostic: Any) -> bool:
            said.append(diagnostic.message)
            return True

        handler = context.attach_diagnostic_handler(hear)
        try:
            # Only StableHLO itself is portable; JAX leaves functions like erf in CHLO.
            PassManager.parse("builtin.module(func.func(chlo-legalize-to-stablehlo))").run(
                module.operation
            )
            return bytes(stablehlo.serialize_portable_artifact(module, version))
        except Exception as error:
            calls = sorted(set(_CUSTOM_CALL.findall(lowered.as_text())))
            why = f"it calls {', '.join(calls)}" if calls else "; ".join(said) or str(error)
            raise GraphError(
                f"the module has no portable form: {why[:300]}. Write it as text (.mlir), or take "
                "the op out, such as a factorisation of a matrix."
            ) from error
        finally:
            handler.detach()
