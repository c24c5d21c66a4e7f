# SPDX-License-Identifier: Apache-2.0
"""Build `torchtpu_core._C` from `csrc/` against the torch that is installed.

All metadata is in `pyproject.toml`; this file only describes the compiled part and
turns the two usual mistakes, no torch and no C++ compiler, into a sentence with the fix.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
SUPPORTED_TORCH = "2.13"
INSTALL_TORCH = (
    f"install torch first (pip install 'torch=={SUPPORTED_TORCH}.*') and build without "
    "isolation (pip install --no-build-isolation ...)."
)

# Building must not load a half-built tpu backend.
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
try:
    import torch
    from torch.utils.cpp_extension import BuildExtension, CppExtension
except ImportError as error:
    raise SystemExit(
        f"torchtpu-core is compiled against torch, which {sys.executable} cannot import "
        f"({error}): {INSTALL_TORCH}"
    ) from error

if ".".join(torch.__version__.split(".")[:2]) != SUPPORTED_TORCH:
    raise SystemExit(
        f"torchtpu-core cannot be built against torch {torch.__version__}: {INSTALL_TORCH}"
    )


class Build(BuildExtension):
    """BuildExtension that looks for the compiler before it starts."""

    def build_extensions(self) -> None:
        """Build, or say which compiler is missing."""
        compiler = os.environ.get("CXX", "c++").split()[0]
        if shutil.which(compiler) is None:
            raise SystemExit(
                f"torchtpu-core needs a C++20 compiler and {compiler!r} is not on PATH: "
                "install g++ or clang++ (apt-get install g++), or set CXX to your compiler."
            )
        super().build_extensions()


def extension() -> CppExtension:
    """The one extension; paths are relative to this file, as setuptools wants them."""
    sources = sorted(str(p.relative_to(HERE)) for p in (HERE / "csrc").rglob("*.cpp"))
    if not sources:
        raise SystemExit("torchtpu-core: csrc/ holds no sources; this source tree is incomplete.")
    return CppExtension(
        name="torchtpu_core._C",
        sources=sources,
        depends=sorted(str(p.relative_to(HERE)) for p in (HERE / "csrc").rglob("*.h")),
        include_dirs=[str(HERE / "csrc")],
        extra_compile_args=["-std=c++20", "-O2", "-g0", "-fvisibility=hidden", "-Wall"],
    )


setup(ext_modules=[extension()], cmdclass={"build_ext": Build})
