# SPDX-License-Identifier: Apache-2.0
"""How setup.py builds the compiled part of a distribution against the torch that is installed.

Each distribution with a `csrc/` has a link to this file, which its source distribution carries
as a file. All metadata is in `pyproject.toml`; this turns the two usual mistakes, no torch and no
C++ compiler, into a sentence with the fix.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from pathlib import Path
from typing import Any

SUPPORTED_TORCH = "2.13"
#: How much source one unit of an installation holds: four for core, one or two for the others.
UNIT_BYTES = 60_000
INSTALL_TORCH = (
    f"install torch first (pip install 'torch=={SUPPORTED_TORCH}.*') and build without "
    "isolation (pip install --no-build-isolation ...)."
)


def check_torch(distribution: str) -> None:
    """Stop with the remedy if the torch to build against is missing or another one."""
    # Building must not load a half-built tpu backend.
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    try:
        import torch
    except ImportError as error:
        raise SystemExit(
            f"{distribution} is compiled against torch, which {sys.executable} cannot import "
            f"({error}): {INSTALL_TORCH}"
        ) from error
    if ".".join(torch.__version__.split(".")[:2]) != SUPPORTED_TORCH:
        raise SystemExit(
            f"{distribution} cannot be built against torch {torch.__version__}: {INSTALL_TORCH}"
        )


def check_compiler(distribution: str) -> None:
    """Stop with the remedy if there is no C++ compiler."""
    compiler = os.environ.get("CXX", "c++").split()[0]
    if shutil.which(compiler) is None:
        raise SystemExit(
            f"{distribution} needs a C++20 compiler and {compiler!r} is not on PATH: "
            "install g++ or clang++ (apt-get install g++), or set CXX to your compiler."
        )


def gathered(sources: list[str], folder: Path) -> list[str]:
    """Write units that each include several sources, about as large as one another.

    Most of what a small source costs is torch's headers: they are read once per unit. Compiling
    core's sources so takes a third of the time; what is edited compiles file by file.
    """
    size = {source: Path(source).stat().st_size for source in sources}
    units: list[list[str]] = [[] for _ in range(math.ceil(sum(size.values()) / UNIT_BYTES))]
    for source in sorted(sources, key=size.__getitem__, reverse=True):
        min(units, key=lambda unit: sum(map(size.__getitem__, unit))).append(source)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"unit{number}.cpp" for number in range(len(units))]
    for path, unit in zip(paths, units, strict=True):
        path.write_text("".join(f'#include "{Path(source).name}"\n' for source in sorted(unit)))
    return [str(path) for path in paths]


def build(distribution: str, here: Path) -> None:
    """Call `setup` with the extensions of a distribution.

    `csrc/*.cpp` is `_C`; a folder below it is a module of its own that does without torch.
    `setup.py build_ext`, called by hand, compiles file by file; an installation gathers them.

    Args:
        distribution: its name; the extension lands in the package of that name.
        here: the folder of its setup.py, which setuptools makes the working directory.
    """
    from setuptools import Extension, setup

    check_torch(distribution)
    from torch.utils.cpp_extension import BuildExtension, CppExtension, include_paths

    class Build(BuildExtension):  # type: ignore[misc]  # torch is not typed here
        """BuildExtension that looks for the compiler before it starts."""

        def build_extensions(self) -> None:
            """Build, or say which compiler is missing."""
            check_compiler(distribution)
            if "build_ext" not in sys.argv:
                for extension in self.extensions:
                    folder = Path(self.build_temp) / "gathered" / extension.name
                    extension.sources = gathered(extension.sources, folder)
            super().build_extensions()

    csrc = here / "csrc"
    package = distribution.replace("-", "_")

    def extension(folder: Path, kind: Any, **options: Any) -> Any:
        return kind(
            sources=sorted(str(p.relative_to(here)) for p in folder.glob("*.cpp")),
            depends=sorted(str(p.relative_to(here)) for p in folder.glob("*.h")),
            extra_compile_args=["-std=c++20", "-O2", "-g0", "-fvisibility=hidden", "-Wall"],
            **options,
        )

    if not any(csrc.glob("*.cpp")):
        raise SystemExit(f"{distribution}: csrc/ holds no sources; this source tree is incomplete.")
    pybind11 = [path for path in include_paths() if (Path(path) / "pybind11").is_dir()]
    name = f"{package}._C"
    timers = ["rt"]  # where glibc before 2.34 has them
    extensions = [
        extension(csrc, CppExtension, name=name, include_dirs=[str(csrc)], libraries=timers)
    ]
    extensions += [
        extension(
            folder,
            Extension,
            name=f"{package}._{folder.name}",
            include_dirs=[str(folder), *pybind11],
            language="c++",
        )
        for folder in sorted(csrc.iterdir())
        if folder.is_dir()
    ]
    setup(ext_modules=extensions, cmdclass={"build_ext": Build})
