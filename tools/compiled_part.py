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
    """Call `setup` with the one extension `_C` of a distribution.

    Args:
        distribution: its name; the extension lands in the package of that name.
        here: the folder of its setup.py, which setuptools makes the working directory.
    """
    from setuptools import setup

    check_torch(distribution)
    from torch.utils.cpp_extension import BuildExtension, CppExtension

    class Build(BuildExtension):  # type: ignore[misc]  # torch is not typed here
        """BuildExtension that looks for the compiler before it starts."""

        def build_extensions(self) -> None:
            """Build, or say which compiler is missing."""
            check_compiler(distribution)
            super().build_extensions()

    csrc = here / "csrc"
    sources = sorted(str(p.relative_to(here)) for p in csrc.rglob("*.cpp"))
    if not sources:
        raise SystemExit(f"{distribution}: csrc/ holds no sources; this source tree is incomplete.")
    extension = CppExtension(
        name=f"{distribution.replace('-', '_')}._C",
        sources=sources,
        depends=sorted(str(p.relative_to(here)) for p in csrc.rglob("*.h")),
        include_dirs=[str(csrc)],
        extra_compile_args=["-std=c++20", "-O2", "-g0", "-fvisibility=hidden", "-Wall"],
    )
    setup(ext_modules=[extension], cmdclass={"build_ext": Build})
