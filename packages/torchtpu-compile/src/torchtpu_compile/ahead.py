# SPDX-License-Identifier: Apache-2.0
"""Ahead-of-time compilation: a model as a file that runs without tracing.

The file holds the program as JAX's versioned export of StableHLO (one for each padded size
where sizes are open), a manifest with checksums, and what the program costs on its target.
The weights are beside it, as safetensors. Nothing in either file is executed when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from jax import export as jax_export
from torch.export.exported_program import ExportedProgram
from torch.fx import Node
from torchtpu_core.lowering.promotion import SCALAR_WORDS
from torchtpu_core.runtime import current
from torchtpu_core.targets import parse_target
from torchtpu_core.tpu import init
from torchtpu_core.xla_tpu import TIMEOUT_S

from torchtpu_compile import (
    ahead_call,
    ahead_file,
    ahead_report,
    export,
    exported_programs,
    weights_file,
)
from torchtpu_compile.ahead_model import AOTModel, load
from torchtpu_compile.ahead_sizes import OpenSizes
from torchtpu_compile.bounded_program import Variant
from torchtpu_compile.errors import GraphError
from torchtpu_compile.executable import CAPTURED, Executable
from torchtpu_compile.result_layout import strides_like
from torchtpu_compile.symbols import Unbounded

__all__ = ["AOTModel", "aot", "load"]


def aot(
    model: torch.nn.Module | ExportedProgram,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    path: str | Path | None = None,
    target: str | None = None,
    name: str = "model",
    dynamic_shapes: Any = None,
    compiler: str = "auto",
    timeout_s: float = TIMEOUT_S,
) -> dict[str, Any]:
    """Compile a model ahead of time into `path`, its weights into ``path`` + ``.safetensors``.

    With libtpu installed (``pip install 'torchtpu-core[tpu]'``) a slice such as
    ``v5p:2x2x1`` is compiled by XLA's own TPU compiler, on a machine without any TPU, in a
    process of its own. Without it, the simulator prices the program, and the report says so.

    What the model writes to its buffers, and the random numbers it draws, are part of the
    program: a loaded model keeps its buffers up to date, and draws from the device's generator.

    Args:
        model: a module that `torch.export` can capture, in the mode it shall run in, or what
            `torch.export.export` or `torch.export.load` returned.
        args: example inputs; their sizes and dtypes are the file's. Left out, like `kwargs` and
            `dynamic_shapes`, for an `ExportedProgram`, which has its own.
        kwargs: further example inputs.
        path: of the program; None: ``<name>.tpu``. A missing directory is made.
        target: where it shall run, such as ``v5p:2x2x1``; None: the current target.
        name: the program's name.
        dynamic_shapes: which sizes of the inputs are open, as `torch.export.export` takes it, each
            with a ``max``; None: those that ``torch._dynamo.mark_dynamic`` marked, else none. The
            file then holds at most 16 programs, for padded sizes up to the bounds.
        compiler: ``auto``, ``xla-tpu`` (an error without libtpu) or ``simulator``.
        timeout_s: how long XLA's TPU compiler may take.

    Returns:
        The cost report: bytes of weights, inputs and results, the device's memory, and
        the simulated time of one run where the target is a chip. From XLA's TPU compiler
        also ``memory``, ``largest_buffers`` and ``fusions``, with the model's lines. With open
        sizes it is that of the largest ones.

    Raises:
        AOTFileError: no file can be written there.
        TypeError: the model is no module and no ExportedProgram, or its arguments are not in a
            tuple and a dict.
        GraphError: the model is not one program, an open size has no upper bound, or an op has
            no rule for padded sizes.
        OutOfMemoryError: the program does not fit the target's memory.
        TPUCompileError: XLA's TPU compiler refused the program, such as a Pallas kernel.
        MissingExtraError: `compiler` is ``xla-tpu`` and libtpu is not installed.
        CompilerTargetError: XLA's TPU compiler does not know the target.
    """
    path = ahead_file.writable(Path(path if path is not None else f"{name}.tpu"))
    args, kwargs = exported_programs.example_of(model, args, kwargs, dynamic_shapes)
    init()
    chosen = parse_target(target or current.target().name)
    executable = export.one_program(model, args, kwargs, name, dynamic_shapes)
    file = _File(executable, name)
    variants = file.variants()
    made = [file.serialized(variant) for variant in variants]
    structs = file.structs(variants[-1])
    report = ahead_report.sizes(chosen, structs, list(file.weights), made[-1][2])
    hlo = ""
    if ahead_report.uses_compiler(compiler, chosen):
        function = file.function(variants[-1])
        found, hlo = ahead_report.compiled(function, structs, chosen, list(file.weights), timeout_s)
        report.update(found)
    else:
        report.update(ahead_report.simulated(made[-1][1], chosen, compiler))
    manifest = {
        "name": name,
        "target": chosen.name,
        "weights_sha256": weights_file.write(weights_file.beside(path), file.weights),
        "report": report,
        **file.manifest(exported_programs.callee(model), args, kwargs, variants),
    }
    ahead_file.write(path, manifest, [serialized for serialized, _, _ in made], hlo)
    return {"path": str(path), **report}


class _File:
    """What a file says of a captured model.

    Attributes:
        weights: parameters, buffers and constants that its programs read or write, by name.

    Raises:
        GraphError: an open size has no upper bound.
    """

    def __init__(self, executable: Executable, name: str) -> None:
        self.name = name
        self.executable = executable
        self.captured = executable.module.meta[CAPTURED]
        self.program = executable.programs[0]
        self.exported = self.captured.exported
        self.arguments = self.captured.arguments
        self.sizes = OpenSizes(self.exported, self.arguments)
        names = _weight_names(self.exported)
        read = export.operands_of(executable)
        updated = ahead_call.updated(self.exported)
        held = [n for n in executable.inputs if n.name in names]
        held = [n for n in held if n in read or names[n.name] in updated]
        self.inputs: list[Node] = held + [n for n in read if n not in held]
        values = {**self.exported.state_dict, **self.exported.constants}
        self.weights = {names[n.name]: values[names[n.name]] for n in held}
        self.required: export.Messages = []

    def variants(self) -> list[Variant | None]:
        """The programs: one, or one per combination of padded sizes, the largest last.

        Raises:
            GraphError: an op has no rule for padded sizes.
        """
        program = self.program
        if program.bounded is None and not program.unbounded:
            return [None]
        try:
            if program.bounded is None:
                raise Unbounded(program.unbounded)
            symbols = program.bounded.symbols
            return [program.bounded.at(sizes) for sizes in self.sizes.combinations(symbols)]
        except Unbounded as error:
            raise GraphError(
                f"the model {self.name!r} cannot run at padded sizes, because {error}. Leave that "
                "size out of dynamic_shapes and make a file for each size, or use torch.compile."
            ) from error

    @property
    def symbols(self) -> list[str]:
        """The names of the open sizes that the programs take, in order."""
        bounded = self.program.bounded
        return [] if bounded is None else [self.sizes.names[s] for s in bounded.symbols]

    def function(self, variant: Variant | None, messages: export.Messages | None = None) -> Any:
        """A program as a function on arrays: inputs, words of open sizes, seed and offset."""
        return export.function_of(self.program, self.inputs, self.name, messages, variant)

    def structs(self, variant: Variant | None) -> list[jax.ShapeDtypeStruct]:
        """What `function` takes."""
        if variant is None:
            found = export.structs_of(self.inputs)
        else:
            operands = dict(zip(self.program.interface.tensors, variant.operands, strict=True))
            found = [
                operands[n] if n in operands else export.structs_of([n])[0] for n in self.inputs
            ]
        found += [jax.ShapeDtypeStruct((SCALAR_WORDS,), np.uint32)] * len(self.symbols)
        if self.program.random_ops:
            found += [jax.ShapeDtypeStruct((), np.uint64)] * 2
        return found

    def serialized(self, variant: Variant | None) -> tuple[bytes, str, Sequence[Any]]:
        """A program as JAX's versioned export, its StableHLO, and its results."""
        jitted = jax.jit(self.function(variant, self.required), keep_unused=True)
        structs = self.structs(variant)
        with ahead_report.without_looking_for_tpus(), jax.enable_x64(True):
            exported = jax_export.export(jitted, platforms=("cpu", "tpu"))(*structs)
            text = jitted.lower(*structs).as_text()
            return bytes(exported.serialize()), text, exported.out_avals

    def manifest(
        self,
        model: torch.nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        variants: Sequence[Variant | None],
    ) -> dict[str, Any]:
        """What `load` needs to call the programs."""
        nodes = {n.name: n for n in self.executable.inputs}
        outputs = list(self.program.interface.outputs)
        held = {node: i for i, node in enumerate(self.inputs[: len(self.weights)])}
        sources = [
            ahead_call.source_of(o, outputs, self.arguments, held, self.sizes)
            for o in self.executable.outputs
        ]
        targets = ahead_call.updates_of(self.exported, self.arguments, list(self.weights))
        shapes = [nodes[name].meta["val"].shape for name in self.arguments]
        signature = self.exported.graph_signature
        return {
            "weights": list(self.weights),
            "state": [n for n in self.weights if n in {*signature.parameters, *signature.buffers}],
            "call": ahead_call.stated_call(model, args, kwargs, self.sizes, shapes),
            "operands": [self.arguments.index(n.name) for n in self.inputs[len(held) :]],
            "symbols": self.symbols,
            "programs": [[] if v is None else list(v.padded) for v in variants],
            "outputs": [self._stated(i, node) for i, node in enumerate(outputs)],
            "updates": list(zip(targets, sources, strict=False)),
            "returned": sources[len(targets) :],
            "containers": self.captured.returned,
            "checks": [[error.__name__, message] for error, message in self.required],
            "random": self.program.random_ops,
        }

    def _stated(self, index: int, node: Node) -> list[Any]:
        """Sizes, strides and dtype of a result."""
        value, bounded = node.meta["val"], self.program.bounded
        layout = None if bounded is None else bounded.layouts[index]
        if layout is None:
            strides: Sequence[Any] = strides_like(value, value.shape)
        else:
            strides = layout.strides or ()
        sizes, steps = ([self.sizes.form(n) for n in given] for given in (value.shape, strides))
        return [sizes, steps, str(value.dtype).removeprefix("torch.")]


def _weight_names(exported: Any) -> dict[str, str]:
    """The names of parameters, buffers and constants, by the graph's input for them."""
    signature = exported.graph_signature
    return {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
