# SPDX-License-Identifier: Apache-2.0
"""Reads spec files: TOML, JSON or YAML, with `base` naming a file to start from.

The tables of the file that names a base replace those of the base key by key, so that
a model's dimensions are written once.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchtpu_core.errors import MissingExtraError, SpecError, TorchTPUError
from torchtpu_core.hardware.registry import chips
from torchtpu_core.workloads.fields import build
from torchtpu_core.workloads.meshes import check_group, network_of, sizes_of, slice_of
from torchtpu_core.workloads.spec import Hardware, Spec, Train

SUFFIXES = (".toml", ".json", ".yaml", ".yml")
#: The list of rows in the text of a file that cannot be parsed.
_ROWS = re.compile(r"""^[\s{]*["']?rows["']?\s*[=:]\s*\[([^\]]*)\]""", re.MULTILINE)


class MistakenSpec(Spec):
    """What stands for a file with a mistake; `unmodelled` says which."""

    __slots__ = ()


def read_spec(path: Path) -> Spec:
    """The spec of a file.

    Raises:
        SpecError: it cannot be read, or says something that no spec says.
        MissingExtraError: it is YAML and PyYAML is not installed.
    """
    spec = build(Spec, _tables(path, ()), str(path))
    if not spec.unmodelled:
        _check_place(spec, path)
    return _per_chip(spec)


def _check_place(spec: Spec, path: Path) -> None:
    """Refuses hardware that does not exist and meshes that do not divide it, by their keys."""
    hardware = spec.hardware
    checks: dict[str, Callable[[], object]] = {
        "hardware.chip": lambda: chips().get(hardware.chip),
        "hardware.topology": lambda: slice_of(spec),
        "hardware.slices": lambda: network_of(hardware),
    }
    if spec.train is not None:
        checks["parallel"] = lambda: sizes_of(
            spec.parallel, network_of(hardware).slice_.torus.chips
        )
        checks["train"] = lambda: _check_parts(hardware, spec.train) if spec.train else None
    if (run := spec.collective) is not None:
        checks["collective"] = lambda: check_group(run, network_of(hardware).slice_.torus)
    for key, check in checks.items():
        try:
            check()
        except TorchTPUError as error:
            raise SpecError(f"{path}.{key}: {error}") from error


def _per_chip(spec: Spec) -> Spec:
    """The spec with its global batch shared out to the chips."""
    if spec.train is None or not spec.train.global_batch:
        return spec
    chips = _chips(spec.hardware)
    share = spec.train.global_batch / chips
    return replace(spec, train=replace(spec.train, batch_per_chip=share, global_batch=0.0))


def _chips(hardware: Hardware) -> int:
    sides = hardware.topology.partition("_")[0].split("x")
    return math.prod(map(int, sides)) * hardware.slices


def _check_parts(hardware: Hardware, train: Train) -> None:
    """Refuses parts of a step's batch that are no whole sequences.

    Raises:
        SpecError: they do not divide it; the message names the nearest that do.
    """
    total = train.global_batch or train.batch_per_chip * _chips(hardware)
    parts = train.gradient_accumulation_steps
    if parts > 1 and (total < parts or total % parts):
        fitting = [n for n in range(1, min(int(total), 2 * parts) + 1) if total % n == 0]
        near = min(fitting, key=lambda n: abs(n - parts), default=1)
        raise SpecError(
            f"gradient_accumulation_steps = {parts} does not divide the {total:g} sequences of a "
            f"step of all chips. Nearest: {near}."
        )


def read_specs(folder: Path) -> dict[str, Spec]:
    """Specs of a folder by row, for the rows they list and the name of their file.

    Files below a folder named ``models`` or ``bases`` are only bases. A file that cannot be
    read as a spec stands for its rows with the reason, as does a row that two files serve.

    Raises:
        SpecError: there is no such folder.
    """
    found: dict[str, Spec] = {}
    origin: dict[str, Path] = {}
    if not folder.is_dir():
        raise SpecError(f"{folder} is not a folder. Pass the folder that holds the spec files.")
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).parts[:-1]
        if path.suffix not in SUFFIXES or {"models", "bases"} & set(inside):
            continue
        try:
            spec = read_spec(path)
        except TorchTPUError as error:
            spec = _unreadable(path, error)
        for row in spec.rows or (path.stem,):
            if row in found:
                both = SpecError(f"Row {row} is served by {origin[row]} and by {path}: keep one.")
                found[row] = _mistaken((row,), both)
            else:
                found[row], origin[row] = spec, path
    return found


def _unreadable(path: Path, error: TorchTPUError) -> MistakenSpec:
    """What stands for a file with a mistake: its rows, if those can be read, and the reason."""
    rows: Any = ()
    try:
        rows = _parse(path).get("rows", ())
    except TorchTPUError:
        with contextlib.suppress(OSError, ValueError):
            rows = [
                name
                for listed in _ROWS.findall(path.read_text(encoding="utf-8"))
                for name in re.findall(r"[^\s,\"']+", listed)
            ]
    listed = rows if isinstance(rows, list) else [rows] if isinstance(rows, str) else ()
    return _mistaken(tuple(map(str, listed)), error)


def _mistaken(rows: tuple[str, ...], error: TorchTPUError) -> MistakenSpec:
    return MistakenSpec(hardware=Hardware(chip="unknown"), rows=rows, unmodelled=str(error))


def _tables(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    path = path.resolve()
    if path in above:
        raise SpecError(f"{path} is its own base, by way of {above[-1]}.")
    tables = _parse(path)
    base = tables.pop("base", None)
    if base is None:
        return tables
    inherited = _tables(path.parent / str(base), (*above, path))
    inherited.pop("rows", None)
    return _merge(inherited, tables)


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        nested = isinstance(value, Mapping) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if nested else value
    return merged


def _parse(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".toml":
            tables: Any = tomllib.loads(text)
        elif path.suffix == ".json":
            tables = json.loads(text)
        else:
            tables = _yaml(text)
    except (OSError, ValueError) as error:
        raise SpecError(f"{path} cannot be read as a spec: {error}") from error
    if not isinstance(tables, dict):
        raise SpecError(f"{path} holds {type(tables).__name__}, not tables of keys and values.")
    return tables


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise MissingExtraError.for_extra("plan", "Reading a spec in YAML") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(error) from error
