# SPDX-License-Identifier: Apache-2.0
"""A model of an ahead-of-time file: its programs, and the state they read and write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import torch
from jax import export as jax_export
from torchtpu_core.runtime import current
from torchtpu_core.tpu import init

from torchtpu_compile import ahead_call, ahead_containers, ahead_file, ahead_sizes, weights_file
from torchtpu_compile.ahead_call import ARGUMENT, RESULT, SIZE, WEIGHT
from torchtpu_compile.ahead_program import FileProgram, Output, is_fixed
from torchtpu_compile.errors import AOTFileError

#: An item of a manifest: its kind, and an index or a value.
_Item = tuple[str, Any]


class AOTModel:
    """A loaded file: call it as the model was called.

    What the model writes to its buffers stays from one call to the next.

    Attributes:
        manifest: what the file says about itself; ``report`` in it is the programs' cost.
    """

    def __init__(
        self, manifest: Mapping[str, Any], exported: Sequence[Any], weights: Sequence[torch.Tensor]
    ) -> None:
        self.manifest = manifest
        self._weights = list(weights)
        self._call = ahead_call.Call(manifest["name"], manifest["call"])
        self._padded: list[list[int]] = manifest["programs"]
        self._returned: list[_Item] = [(kind, value) for kind, value in manifest["returned"]]
        if ahead_containers.leaf_count(manifest["containers"]) != len(self._returned):
            raise ValueError("what it returns has another structure")
        outputs: list[Output] = [
            (sizes, strides, getattr(torch, dtype)) for sizes, strides, dtype in manifest["outputs"]
        ]
        written = self._plan_updates(outputs)
        needed = [*self._returned, *(source for _, source in self._copies)]
        kept = sorted({i for kind, i in needed if kind == RESULT})
        self._place = {result: place for place, result in enumerate(kept)}
        sizes = [list(weight.shape) for weight in weights]
        sizes += [self._call.sizes[i] for i in manifest["operands"]]
        self._programs = [
            FileProgram(manifest, program, sizes, outputs, kept, written) for program in exported
        ]
        if len(self._programs) != len(self._padded):
            raise ValueError("it has another number of programs")

    def _plan_updates(self, outputs: Sequence[Output]) -> list[tuple[int, int]]:
        """Sort out what the programs write themselves: operands, and results that are their values.

        The other updates are copied after a run, from results of open size (on the device, a copy
        would be a program per size) or from what was there before.
        """
        operands = self.manifest["operands"]
        written: list[tuple[int, int]] = []
        self._copies: list[tuple[_Item, _Item]] = []
        self._targets: list[_Item] = []
        for (kind, index), (source, value) in self.manifest["updates"]:
            self._targets.append((kind, index))
            if source == RESULT and is_fixed(outputs[value][0]):
                if kind == WEIGHT:
                    written.append((index, value))
                    continue
                if index in operands:
                    written.append((len(self._weights) + operands.index(index), value))
                    continue
            self._copies.append(((kind, index), (source, value)))
        return written

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers that the programs read or write, by name, as they are now.

        They are the model's own, on the device: a later call changes what it writes.
        """
        found = dict(zip(self.manifest["weights"], self._weights, strict=True))
        return {name: found[name] for name in self.manifest["state"]}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copy parameters and buffers from `state`, such as ``model.state_dict()``.

        Names that no program reads are ignored.

        Raises:
            KeyError: a name of `state_dict` is missing.
            ValueError: a tensor has another size.
        """
        own = self.state_dict()
        if missing := sorted(set(own) - set(state)):
            raise KeyError(f"the state lacks {', '.join(missing)}. Give all names of state_dict().")
        for name, tensor in own.items():
            if state[name].shape != tensor.shape:
                raise ValueError(
                    f"{name} has size {list(state[name].shape)}, but the file was made for "
                    f"{list(tensor.shape)}. Make a file of that model with torch_tpu.compile.aot."
                )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on tensors of any device, of the sizes and dtypes the file was made for.

        What the model writes to an argument is written to the caller's tensor. A buffer that it
        both writes and returns is returned as a copy.

        Raises:
            AOTFileError: an argument has another size or dtype, is in another container, or is
                another plain value.
            IndexError: an index is out of range; raised at the next synchronisation, as from
                every operator. Names the model's line.
        """
        given, known = self._call.tensors_of(args, kwargs)
        with torch.no_grad():
            arguments = [x.to("tpu") for x in given]
            before = self._before(arguments)
            results = self._run(arguments, known)

            def item(source: _Item) -> Any:
                kind, value = source
                if kind == RESULT:
                    return results[self._place[value]]
                if kind in (ARGUMENT, WEIGHT):
                    return before[source]
                return ahead_sizes.value(value, known) if kind == SIZE else value

            returned = [item(source) for source in self._returned]
            for target, source in self._copies:
                value = item(source)
                self._tensor(target, arguments).copy_(value.cpu() if known else value)
            for kind, index in self._targets:
                if kind == ARGUMENT and given[index] is not arguments[index]:
                    given[index].copy_(arguments[index])
        return ahead_containers.unflatten(self.manifest["containers"], iter(returned))

    def _run(self, arguments: Sequence[torch.Tensor], known: Mapping[str, int]) -> list[Any]:
        operands = [*self._weights, *(arguments[i] for i in self.manifest["operands"])]
        true = [known[name] for name in self.manifest["symbols"]]
        return self._programs[ahead_sizes.smallest(self._padded, true)](operands, known)

    def _tensor(self, place: _Item, arguments: Sequence[torch.Tensor]) -> torch.Tensor:
        kind, index = place
        return (self._weights if kind == WEIGHT else arguments)[index]

    def _before(self, arguments: Sequence[torch.Tensor]) -> dict[_Item, torch.Tensor]:
        """Arguments and weights that are returned or copied, with the values they have now."""
        needed = [*self._returned, *(source for _, source in self._copies)]
        found = {}
        for place in needed:
            if place[0] in (ARGUMENT, WEIGHT):
                tensor = self._tensor(place, arguments)
                found[place] = tensor.clone() if place in self._targets else tensor
        return found


def load(path: str | Path) -> AOTModel:
    """The model of a file that `aot` wrote; nothing is traced.

    Raises:
        AOTFileError: the file is damaged, or was made for another target or version.
    """
    path = Path(path)
    manifest, programs = ahead_file.read(path)
    init()
    here = current.target().name
    if manifest["target"] != here:
        raise AOTFileError(
            f"{path} was compiled for target {manifest['target']!r}, but this process runs on "
            f"{here!r}. Set TORCH_TPU_TARGET={manifest['target']} before starting Python, or "
            f"compile it anew with target={here!r}."
        )
    ahead_file.refuse_other_versions(path, manifest)
    weights_path = weights_file.beside(path)
    found = weights_file.read(weights_path, manifest["weights_sha256"])
    missing = [name for name in manifest["weights"] if name not in found]
    if missing:
        raise AOTFileError(
            f"{weights_path} lacks the weights {', '.join(missing)} of {path}. Put the file "
            "that was written with it beside it."
        )
    weights = [found[name].to("tpu") for name in manifest["weights"]]
    with jax.enable_x64(True):
        exported = [jax_export.deserialize(bytearray(program)) for program in programs]
    try:
        return AOTModel(manifest, exported, weights)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise AOTFileError(
            f"{path} is damaged: its manifest cannot be read ({error}). Compile it anew."
        ) from error
