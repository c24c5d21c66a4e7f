# SPDX-License-Identifier: Apache-2.0
"""Ahead-of-time compilation: a model as a file that runs without tracing.

The file holds the program as JAX's versioned export of StableHLO, a manifest with a
checksum, and what the program costs on its target. The weights are beside it, as
safetensors. Nothing in either file is executed when it is read.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import torch
from jax import export as jax_export
from torch.utils import _pytree as pytree
from torchtpu_core.calls import OutSpec, device_call
from torchtpu_core.lowering import dtypes
from torchtpu_core.runtime import current
from torchtpu_core.simulator.pricing import price
from torchtpu_core.simulator.stablehlo import program_cost
from torchtpu_core.targets import parse_target
from torchtpu_core.tpu import init

from torchtpu_compile import export, numbers, weights_file
from torchtpu_compile.errors import AOTFileError, GraphError
from torchtpu_compile.executable import Executable

_FORMAT = 1
_MANIFEST, _PROGRAM = "manifest.json", "program.bin"
_VERSIONED = ("torchtpu-core", "jax")


class AOTModel:
    """A loaded file: call it as the model was called.

    Attributes:
        manifest: what the file says about itself; ``report`` in it is the program's cost.
    """

    def __init__(self, manifest: Mapping[str, Any], exported: Any, weights: Sequence[Any]) -> None:
        self.manifest = manifest
        self._weights = list(weights)
        self._out = pytree.treespec_loads(manifest["out_spec"])
        self._specs: list[OutSpec] = [
            (size, stride, getattr(torch, dtype)) for size, stride, dtype in manifest["outputs"]
        ]

        def run(arrays: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
            return tuple(exported.call(*arrays))

        self._call = device_call(f"torchtpu::{manifest['name']}", run)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on tensors of any device, of the sizes and dtypes the file was made for.

        Raises:
            AOTFileError: an argument has another size or dtype.
        """
        given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        expected = self.manifest["inputs"]
        found = [[list(x.shape), _dtype_name(x.dtype)] for x in given]
        if found != expected:
            raise AOTFileError(
                f"{self.manifest['name']!r} was compiled for arguments {expected}, but was called "
                f"with {found}. Call it so, or make a file for these with torch_tpu.compile.aot."
            )
        operands = [*self._weights, *(x.to("tpu") for x in given)]
        results = self._call(operands, [], [], self._specs.copy)
        chosen = [results[i] if i is not None else None for i in self.manifest["returned"]]
        return pytree.tree_unflatten(chosen, self._out)


def aot(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    path: str | Path,
    target: str | None = None,
    name: str = "model",
) -> dict[str, Any]:
    """Compile a model ahead of time into `path`, its weights into ``path`` + ``.safetensors``.

    Args:
        model: a module that `torch.export` can capture, in the mode it shall run in.
        args: example inputs; their sizes and dtypes are the file's.
        kwargs: further example inputs.
        path: of the program.
        target: where it shall run, such as ``v5p:2x2x1``; None: the current target.
        name: the program's name.

    Returns:
        The cost report: bytes of weights, inputs and results, the device's memory, and
        the simulated time of one run where the target is a chip.

    Raises:
        GraphError: the model is not one program, or writes to its buffers.
        OutOfMemoryError: operands and results alone do not fit the target's memory.
    """
    init()
    chosen = parse_target(target or current.target().name)
    executable = export.one_program(model, args, kwargs, name)
    exported = executable.module.meta[export.EXPORTED]
    if exported.graph_signature.buffers_to_mutate:
        raise GraphError(
            f"the model writes to {', '.join(exported.graph_signature.buffers_to_mutate.values())}"
            ", which an ahead-of-time file does not do. Call model.eval() before."
        )
    inputs = export.operands_of(executable)
    weights = _weights(exported, executable, inputs)
    program = executable.programs[0]
    function = jax.jit(export.function_of(program, inputs, name), keep_unused=True)
    structs = [
        jax.ShapeDtypeStruct(tuple(n.meta["val"].shape), dtypes.to_numpy(n.meta["val"].dtype))
        for n in inputs
    ]
    with jax.enable_x64(True):
        serialized = bytes(
            jax_export.export(function, platforms=("cpu", "tpu"))(*structs).serialize()
        )
        text = function.lower(*structs).as_text()
    outputs = list(program.interface.outputs)
    report = _report(text, chosen, weights, inputs[len(weights) :], outputs)
    manifest = {
        "format": _FORMAT,
        "name": name,
        "target": chosen.name,
        "versions": {package: version(package) for package in _VERSIONED},
        "sha256": hashlib.sha256(serialized).hexdigest(),
        "weights": list(weights),
        "inputs": [_size_and_dtype(n) for n in inputs[len(weights) :]],
        "outputs": [
            [
                list(n.meta["val"].shape),
                list(numbers.contiguous(n.meta["val"].shape)),
                _dtype_name(n.meta["val"].dtype),
            ]
            for n in outputs
        ],
        "returned": [outputs.index(o) if o in outputs else None for o in executable.outputs],
        "out_spec": pytree.treespec_dumps(exported.call_spec.out_spec),
        "report": report,
    }
    weights_file.write(_weights_path(path), weights)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_MANIFEST, json.dumps(manifest, indent=1))
        archive.writestr(_PROGRAM, serialized)
    return report


def load(path: str | Path) -> AOTModel:
    """The model of a file that `aot` wrote; nothing is traced.

    Raises:
        AOTFileError: the file is damaged, or was made for another target or version.
    """
    manifest, serialized = _read(Path(path))
    init()
    here = current.target().name
    if manifest["target"] != here:
        raise AOTFileError(
            f"{path} was compiled for target {manifest['target']!r}, but this process runs on "
            f"{here!r}. Set TORCH_TPU_TARGET={manifest['target']} before starting Python, or "
            f"compile it anew with target={here!r}."
        )
    for package, made_with in manifest["versions"].items():
        if version(package) != made_with:
            raise AOTFileError(
                f"{path} was made with {package} {made_with}, but {version(package)} is "
                "installed. Compile it anew with torch_tpu.compile.aot."
            )
    found = weights_file.read(_weights_path(path))
    missing = [name for name in manifest["weights"] if name not in found]
    if missing:
        raise AOTFileError(
            f"{_weights_path(path)} lacks the weights {', '.join(missing)} of {path}. Put the file "
            "that was written with it beside it."
        )
    weights = [found[name].to("tpu") for name in manifest["weights"]]
    with jax.enable_x64(True):
        return AOTModel(manifest, jax_export.deserialize(bytearray(serialized)), weights)


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(archive.read(_MANIFEST))
            serialized = archive.read(_PROGRAM)
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise AOTFileError(
            f"{path} is not a readable ahead-of-time file ({error}). Compile it anew with "
            "torch_tpu.compile.aot."
        ) from error
    if manifest.get("format") != _FORMAT:
        raise AOTFileError(
            f"{path} has format {manifest.get('format')}, this version reads {_FORMAT}. Compile it "
            "anew with torch_tpu.compile.aot."
        )
    if hashlib.sha256(serialized).hexdigest() != manifest["sha256"]:
        raise AOTFileError(f"{path} is damaged: its program has another checksum. Compile it anew.")
    return manifest, serialized


def _weights(exported: Any, executable: Executable, inputs: Sequence[Any]) -> dict[str, Any]:
    """Parameters, buffers and constants by name, in operand order; they come first.

    Raises:
        GraphError: an operand that is none of these comes before one that is.
    """
    signature = exported.graph_signature
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    held = {**exported.state_dict, **exported.constants}
    found: dict[str, Any] = {}
    for position, node in enumerate(inputs):
        name = names.get(node.name)
        if name is None:
            continue
        if len(found) != position:
            raise GraphError(f"the weight {name} comes after an input; please report this model.")
        found[name] = held[name]
    return found


def _report(
    text: str,
    target: Any,
    weights: Mapping[str, Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
) -> dict[str, Any]:
    sizes = {
        "weight_bytes": sum(w.numel() * w.element_size() for w in weights.values()),
        "input_bytes": sum(_bytes(n) for n in inputs),
        "output_bytes": sum(_bytes(n) for n in outputs),
    }
    limit = target.hbm_bytes_per_device
    if limit is not None and sum(sizes.values()) > limit:
        largest = max(weights, key=lambda n: weights[n].numel(), default="none")
        raise torch.OutOfMemoryError(
            f"the model needs {sum(sizes.values())} bytes for weights, inputs and results, but a "
            f"device of {target.name} has {limit}. The largest weight is {largest!r}. Use a chip "
            "with more memory, fewer or smaller weights, or shard the model."
        )
    report: dict[str, Any] = {"target": target.name, **sizes, "device_bytes": limit}
    if target.slice_ is not None:
        cost = price(program_cost(text), target.slice_)
        report.update(
            priced_by="simulator", simulated_run_ps=cost.total_ps, simulated_bound_by=cost.bound_by
        )
    return report


def _bytes(node: Any) -> int:
    value = node.meta["val"]
    return int(value.numel()) * int(value.element_size())


def _size_and_dtype(node: Any) -> list[Any]:
    return [list(node.meta["val"].shape), _dtype_name(node.meta["val"].dtype)]


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _weights_path(path: str | Path) -> Path:
    return Path(f"{path}.safetensors")
