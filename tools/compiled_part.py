# SPDX-License-Identifier: Apache-2.0
"""How setup.py builds the compiled part of a distribution against the torch that is installed.

Each distribution with a `csrc/` has a link to this file, which its source distribution carries
as a file. All metadata is in `pyproject.toml`; this turns the two usual mistakes, no torch and no
C++ compiler, into a sentence with the fix.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

SUPPORTED_TORCH = "2.13"
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


def build(distribution: str, here: Path) -> None:
    """Call `setup` with the extensions of a distribution.

    `csrc/*.cpp` is `_C`; a folder below it is a module of its own that does without torch.

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
    extensions = [extension(csrc, CppExtension, name=f"{package}._C", include_dirs=[str(csrc)])]
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
