# SPDX-License-Identifier: Apache-2.0
"""Ahead-of-time compilation: a model as a file that runs without tracing.

The file holds the program as JAX's versioned export of StableHLO, a manifest with a
checksum, and what the program costs on its target. The weights are beside it, as
safetensors. Nothing in either file is executed when it is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax
import torch
from jax import export as jax_export
from torch.utils import _pytree as pytree
from torchtpu_core.calls import OutSpec, device_call
from torchtpu_core.lowering import checks
from torchtpu_core.runtime import current
from torchtpu_core.targets import parse_target
from torchtpu_core.tpu import init
from torchtpu_core.xla_tpu import TIMEOUT_S

from torchtpu_compile import ahead_call, ahead_report, export, weights_file
from torchtpu_compile.errors import AOTFileError, GraphError
from torchtpu_compile.executable import Executable
from torchtpu_compile.result_layout import strides_like

_FORMAT = 4
_MANIFEST, _PROGRAM, _HLO = "manifest.json", "program.bin", "optimized.hlo.txt"
_VERSIONED = ("torchtpu-core", "jax")
#: What `load` reads of a manifest.
_KEYS = frozenset(
    {"name", "target", "versions", "sha256", "weights", "weights_sha256"}
    | {"call", "operands", "outputs", "returned", "out_spec", "checks"}
)
#: What reading a damaged archive raises; a flipped bit may ask for a password.
_UNREADABLE = (
    OSError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    LookupError,
    ValueError,
    RuntimeError,
)


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
        self._refuse_other_signature(exported)
        required = ahead_call.errors_of(manifest["checks"])
        results = len(self._specs)

        def run(arrays: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
            made = exported.call(*arrays)
            for i, (error, message) in enumerate(required):
                checks.require(~made[results][i], error, message)
            return tuple(made[:results])

        self._call = device_call(f"torchtpu::{manifest['name']}", run)

    def _refuse_other_signature(self, exported: Any) -> None:
        """Compare what the manifest says with the program."""
        manifest, made = self.manifest, [list(a.shape) for a in exported.out_avals]
        given = [list(w.shape) for w in self._weights]
        given += [size for size, _ in manifest["operands"]]
        if given != [list(a.shape) for a in exported.in_avals]:
            raise ValueError("its inputs are not those of its program")
        results = [i for kind, i in manifest["returned"] if kind == ahead_call.RESULT]
        flags = [[len(manifest["checks"])]] if manifest["checks"] else []
        if made != [list(size) for size, _, _ in self._specs] + flags or not all(
            0 <= i < len(self._specs) for i in results
        ):
            raise ValueError("its outputs are not those of its program")
        if self._out.num_leaves != len(manifest["returned"]):
            raise ValueError("what it returns has another structure")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on tensors of any device, of the sizes and dtypes the file was made for.

        Raises:
            AOTFileError: an argument has another size or dtype, is in another container, or is
                another plain value.
            IndexError: an index is out of range; raised at the next synchronisation, as from
                every operator. Names the model's line.
        """
        manifest = self.manifest
        given = ahead_call.tensors_of(manifest["call"], manifest["name"], args, kwargs)
        arguments = [x.to("tpu") for x in given]
        operands = [*self._weights, *(arguments[i] for _, i in manifest["operands"])]
        sources = {
            ahead_call.RESULT: self._call(operands, [], [], self._specs.copy),
            ahead_call.ARGUMENT: arguments,
            ahead_call.WEIGHT: self._weights,
        }
        chosen = [sources[kind][i] if kind in sources else i for kind, i in manifest["returned"]]
        return pytree.tree_unflatten(chosen, self._out)


def aot(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    path: str | Path | None = None,
    target: str | None = None,
    name: str = "model",
    compiler: str = "auto",
    timeout_s: float = TIMEOUT_S,
) -> dict[str, Any]:
    """Compile a model ahead of time into `path`, its weights into ``path`` + ``.safetensors``.

    With libtpu installed (``pip install 'torchtpu-core[tpu]'``) a slice such as
    ``v5p:2x2x1`` is compiled by XLA's own TPU compiler, on a machine without any TPU, in a
    process of its own. Without it, the simulator prices the program, and the report says so.

    Args:
        model: a module that `torch.export` can capture, in the mode it shall run in.
        args: example inputs; their sizes and dtypes are the file's.
        kwargs: further example inputs.
        path: of the program; None: ``<name>.tpu``. A missing directory is made.
        target: where it shall run, such as ``v5p:2x2x1``; None: the current target.
        name: the program's name.
        compiler: ``auto``, ``xla-tpu`` (an error without libtpu) or ``simulator``.
        timeout_s: how long XLA's TPU compiler may take.

    Returns:
        The cost report: bytes of weights, inputs and results, the device's memory, and
        the simulated time of one run where the target is a chip. From XLA's TPU compiler
        also ``memory``, ``largest_buffers`` and ``fusions``, with the model's lines.

    Raises:
        AOTFileError: no file can be written there.
        TypeError: the model is no module, or its arguments are not in a tuple and a dict.
        GraphError: the model is not one program, or writes to its buffers or arguments.
        OutOfMemoryError: the program does not fit the target's memory.
        TPUCompileError: XLA's TPU compiler refused the program, such as a Pallas kernel.
        MissingExtraError: `compiler` is ``xla-tpu`` and libtpu is not installed.
        CompilerTargetError: XLA's TPU compiler does not know the target.
    """
    path = _writable(Path(path if path is not None else f"{name}.tpu"))
    init()
    chosen = parse_target(target or current.target().name)
    executable = export.one_program(model, args, kwargs, name)
    exported = executable.module.meta[export.EXPORTED]
    arguments = ahead_call.user_tensors(exported)
    out_spec = ahead_call.spec_text(exported.call_spec.out_spec)
    inputs = export.operands_of(executable)
    weights = _weights(exported, executable, inputs)
    program = executable.programs[0]
    structs = export.structs_of(inputs)
    required: export.Messages = []
    serialized, text = _serialized(export.function_of(program, inputs, name, required), structs)
    outputs = list(program.interface.outputs)
    report = ahead_report.sizes(chosen, weights, inputs[len(weights) :], outputs)
    hlo = ""
    if ahead_report.uses_compiler(compiler, chosen):
        found, hlo = ahead_report.compiled(
            export.function_of(program, inputs, name), structs, chosen, list(weights), timeout_s
        )
        report.update(found)
    else:
        report.update(ahead_report.simulated(text, chosen, compiler))
    manifest = {
        "name": name,
        "target": chosen.name,
        "weights": list(weights),
        "weights_sha256": weights_file.write(_weights_path(path), weights),
        "report": report,
        "call": ahead_call.described(args, kwargs or {}),
        "checks": [[error.__name__, message] for error, message in required],
        "out_spec": out_spec,
        **_signature(executable, inputs, len(weights), arguments, serialized),
    }
    _write(path, {_MANIFEST: json.dumps(manifest, indent=1), _PROGRAM: serialized, _HLO: hlo})
    return {"path": str(path), **report}


def _serialized(function: Any, structs: Sequence[jax.ShapeDtypeStruct]) -> tuple[bytes, str]:
    """A function on arrays as JAX's versioned export, and its StableHLO."""
    jitted = jax.jit(function, keep_unused=True)
    with ahead_report.without_looking_for_tpus(), jax.enable_x64(True):
        exported = jax_export.export(jitted, platforms=("cpu", "tpu"))(*structs)
        return bytes(exported.serialize()), jitted.lower(*structs).as_text()


def _writable(path: Path) -> Path:
    """The path of a file whose directory exists now, before time is spent on compiling."""
    with weights_file.naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError("it is a directory")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise PermissionError("there is no permission to write it")
    return path


def _write(path: Path, parts: Mapping[str, str | bytes]) -> None:
    """Write the parts of a file that are not empty."""
    with (
        weights_file.naming(path),
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name, content in parts.items():
            if content:
                archive.writestr(name, content)


def _signature(
    executable: Executable,
    inputs: Sequence[Any],
    weights: int,
    arguments: Sequence[str],
    serialized: bytes,
) -> dict[str, Any]:
    """What `load` needs to call the program, and to refuse a damaged or foreign one."""
    outputs = list(executable.programs[0].interface.outputs)
    held = {node: i for i, node in enumerate(inputs[:weights])}
    return {
        "format": _FORMAT,
        "versions": {package: version(package) for package in _VERSIONED},
        "sha256": hashlib.sha256(serialized).hexdigest(),
        "operands": [
            (list(n.meta["val"].shape), arguments.index(n.name)) for n in inputs[weights:]
        ],
        "outputs": [
            [
                list(n.meta["val"].shape),
                strides_like(n.meta["val"], n.meta["val"].shape),
                str(n.meta["val"].dtype).removeprefix("torch."),
            ]
            for n in outputs
        ],
        "returned": [ahead_call.source_of(o, outputs, arguments, held) for o in executable.outputs],
    }


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
        if (installed := _installed(package)) != made_with:
            raise AOTFileError(
                f"{path} was made with {package} {made_with}, but {installed} is "
                "installed. Compile it anew with torch_tpu.compile.aot."
            )
    found = weights_file.read(_weights_path(path), manifest["weights_sha256"])
    missing = [name for name in manifest["weights"] if name not in found]
    if missing:
        raise AOTFileError(
            f"{_weights_path(path)} lacks the weights {', '.join(missing)} of {path}. Put the file "
            "that was written with it beside it."
        )
    weights = [found[name].to("tpu") for name in manifest["weights"]]
    with jax.enable_x64(True):
        exported = jax_export.deserialize(bytearray(serialized))
    try:
        return AOTModel(manifest, exported, weights)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise AOTFileError(
            f"{path} is damaged: its manifest cannot be read ({error}). Compile it anew."
        ) from error


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(archive.read(_MANIFEST))
            serialized = archive.read(_PROGRAM)
        if not isinstance(manifest, dict):
            raise ValueError("its manifest is no object")
    except _UNREADABLE as error:
        raise AOTFileError(
            f"{path} is not a readable ahead-of-time file ({error}). Compile it anew with "
            "torch_tpu.compile.aot."
        ) from error
    if manifest.get("format") != _FORMAT:
        raise AOTFileError(
            f"{path} has format {manifest.get('format')}, this version reads {_FORMAT}. Compile it "
            "anew with torch_tpu.compile.aot."
        )
    missing = sorted(_KEYS - set(manifest))
    if missing:
        raise AOTFileError(
            f"{path} is damaged: its manifest lacks {', '.join(missing)}. Compile it anew."
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


def _weights_path(path: str | Path) -> Path:
    return Path(f"{path}.safetensors")
