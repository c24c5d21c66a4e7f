# SPDX-License-Identifier: Apache-2.0
"""Checks of what is installed: versions, compiler, and packages that get in the way.

Nothing here starts the device.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from torchtpu_core.cli.findings import Finding, error, warning

_OURS = (
    "torchtpu-core",
    "torchtpu-eager",
    "torchtpu-compile",
    "torchtpu-distributed",
    "torchtpu-kernels",
)
# Distributions that use the same device or the same names, and what happens.
_RIVALS = {
    "torch-tpu": "it also registers the device 'tpu' and the package 'torch_tpu'",
    "torch-xla": "a TPU can be opened by one of the two only",
}


def version_of(distribution: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions() -> Iterator[Finding]:
    """Python, torch, JAX, libtpu and our own distributions."""
    yield Finding(topic="python", text=f"{platform.python_version()} on {platform.platform()}")
    yield from _required()
    libtpu = version_of("libtpu")
    yield Finding(topic="libtpu", text=libtpu or "not installed (needed for a real TPU only)")
    core = version_of("torchtpu-core")
    for name in _OURS:
        found = version_of(name)
        if found is None:
            extra = name.removeprefix("torchtpu-")
            note = f"not installed (pip install 'torchtpu-core[{extra}]')"
            yield Finding(topic=name, text=note)
        elif found != core:
            yield error(
                name,
                f"{found}, but torchtpu-core is {core}: they are released together",
                f"pip install '{name}=={core}'",
            )
        else:
            yield Finding(topic=name, text=found)


def _required() -> Iterator[Finding]:
    """The requirements of torchtpu-core, against what is installed."""
    from packaging.requirements import Requirement

    for line in importlib.metadata.requires("torchtpu-core") or ():
        wanted = Requirement(line)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        found = version_of(wanted.name)
        fix = f"pip install '{wanted.name}{wanted.specifier}'"
        if found is None:
            yield error(wanted.name, "not installed", fix)
        elif not wanted.specifier.contains(found, prereleases=True):
            text = f"{found} does not satisfy {wanted.specifier}"
            yield error(wanted.name, text, fix)
        else:
            yield Finding(topic=wanted.name, text=found)


def compiler() -> Iterator[Finding]:
    """The C++ compiler, which only installing from source needs."""
    command = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if command is None:
        yield Finding(topic="compiler", text="none found (needed to install from source only)")
        return
    try:
        done = subprocess.run(
            [*command.split(), "--version"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as failure:
        yield warning(
            "compiler", f"{command} does not run: {failure}", "set CXX to a C++20 compiler"
        )
        return
    yield Finding(topic="compiler", text=done.stdout.splitlines()[0])


def conflicts() -> Iterator[Finding]:
    """Packages that claim the same device or the same names."""
    for name, why in _RIVALS.items():
        found = version_of(name)
        if found is not None:
            yield error(name, f"{name} {found} is installed: {why}", f"pip uninstall {name}")
    yield from _facade()
    ours = {"torchtpu-core", "torchtpu-distributed"}
    for point in importlib.metadata.entry_points(group="torch.backends"):
        owner = point.dist.name if point.dist is not None else "unknown"
        if owner not in ours:
            yield warning(
                "backends",
                f"{owner} also extends torch at import ({point.value})",
                "PyTorch has room for one PrivateUse1 backend; uninstall one if both claim it",
            )


def _facade() -> Iterator[Finding]:
    import torchtpu_core

    spec = importlib.util.find_spec("torch_tpu")
    beside = Path(torchtpu_core.__file__ or "").parent.parent
    if spec is None or spec.origin is None:
        yield error(
            "torch_tpu",
            "the facade 'torch_tpu' is missing",
            "pip install --force-reinstall torchtpu-core",
        )
    elif Path(spec.origin).parent.parent != beside:
        yield error(
            "torch_tpu",
            f"'import torch_tpu' finds another package: {spec.origin}",
            "uninstall that package, then pip install --force-reinstall torchtpu-core",
        )
