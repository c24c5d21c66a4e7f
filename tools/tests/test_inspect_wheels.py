# SPDX-License-Identifier: Apache-2.0
"""A wheel as it should be passes; each way to be wrong is named."""

from __future__ import annotations

import zipfile
from pathlib import Path

import inspect_wheels
import pytest

METADATA = "Metadata-Version: 2.4\nName: x\nVersion: {version}\nRequires-Dist: {torch}\n"
TORCH = "torch<2.14,>=2.13"


def write_wheel(
    folder: Path,
    name: str,
    *,
    version: str = "0.1.0",
    torch: str = TORCH,
    without: str = "",
    extra: str = "",
) -> None:
    """Write a wheel with what a good one holds, except some file, plus some other."""
    info = f"{name}-0.1.0.dist-info"
    names = [f"{package}/py.typed" for package in inspect_wheels.CONTENT[name]]
    names += [f"{info}/licenses/LICENSE", *([extra] if extra else [])]
    if name == "torchtpu_core":
        names += [
            f"torchtpu_core/{module}.cpython-311-x86_64-linux-gnu.so" for module in ("_C", "_fluid")
        ]
    with zipfile.ZipFile(folder / f"{name}-0.1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{info}/METADATA", METADATA.format(version=version, torch=torch))
        for file in names:
            if not (without and file.endswith(without)):
                archive.writestr(file, "")


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """A folder of five good wheels."""
    for name in inspect_wheels.CONTENT:
        write_wheel(tmp_path, name)
    return tmp_path


def messages(dist: Path) -> list[str]:
    """What is wrong with the wheels of a folder."""
    return [problem.message for problem in inspect_wheels.problems(dist, "0.1.0")]


def test_good_wheels_pass(dist: Path) -> None:
    assert messages(dist) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"version": "0.2.0"}, "version 0.2.0, the repository has 0.1.0"),
        ({"torch": "torch"}, "does not pin the minor version of torch it was built against"),
        ({"without": "torch_tpu/py.typed"}, "torch_tpu/py.typed is missing"),
        ({"without": ".so"}, "holds no compiled device"),
        ({"without": "LICENSE"}, "holds no licence"),
        ({"extra": "torchtpu_core/x.cpp"}, "holds C++ sources"),
        ({"extra": "tests/test_x.py"}, "holds ['tests', 'torch_tpu', 'torchtpu_core']"),
    ],
)
def test_wrong_wheel_of_core_is_named(dist: Path, change: dict[str, str], expected: str) -> None:
    write_wheel(dist, "torchtpu_core", **change)
    assert any(message.startswith(expected) for message in messages(dist))


def test_missing_wheel_is_named(dist: Path) -> None:
    next(dist.glob("torchtpu_kernels*")).unlink()
    assert messages(dist) == ["no wheel of torchtpu_kernels"]
