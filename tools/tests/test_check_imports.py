# SPDX-License-Identifier: Apache-2.0
"""Each rule on imports holds for the repository and bites in a small one made to break it."""

from __future__ import annotations

from pathlib import Path

import check_imports
import pytest
from sources import ROOT

CORE = "packages/torchtpu-core/src/torchtpu_core"
EAGER = "packages/torchtpu-eager/src/torchtpu_eager"
FACADE = "packages/torchtpu-core/src/torch_tpu"


def repository(root: Path, files: dict[str, str]) -> Path:
    """A small repository with the given files and the packages' ``__init__.py``."""
    everything = {f"{p}/__init__.py": "" for p in (CORE, f"{CORE}/ici", EAGER, FACADE)} | files
    for name, text in everything.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def messages(root: Path) -> list[str]:
    """What the check says about a repository."""
    found = [*check_imports.distribution_problems(root), *check_imports.example_problems(root)]
    return [str(problem) for problem in found]


def test_repository_keeps_the_rules() -> None:
    assert check_imports.main(ROOT) == 0


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (f"{CORE}/a.py", "import torch\nimport jax\nfrom torchtpu_core.ici import x"),
        (f"{EAGER}/plugin.py", "from torchtpu_core.hookspecs import hook\nfrom . import modes"),
        (f"{FACADE}/compile.py", "def f():\n    import torchtpu_compile"),
        (f"{CORE}/ici/torus.py", "from __future__ import annotations\nimport math"),
        (f"{CORE}/_autoload.py", "import os\ndef autoload():\n    import torchtpu_core.late"),
        ("examples/train.py", "import torch\nfrom _common import Run"),
    ],
)
def test_allowed_import_is_accepted(tmp_path: Path, file: str, text: str) -> None:
    late = {f"{CORE}/late.py": "import jax"}
    assert messages(repository(tmp_path, {file: text, **late})) == []


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        (f"{CORE}/a.py", "import torchtpu_eager", "core must not import torchtpu_eager"),
        (f"{CORE}/a.py", "def f():\n  from torch_tpu import x", "must not import the facade"),
        (f"{EAGER}/a.py", "import torch_tpu.pallas", "must not import the facade"),
        (f"{EAGER}/a.py", "import torchtpu_compile", "must not import its sibling"),
        (f"{EAGER}/a.py", "from torchtpu_core import _C", "private to core"),
        (f"{EAGER}/a.py", "import torchtpu_core._autoload", "private to core"),
        (f"{CORE}/ici/a.py", "def f():\n    import torch", "must work without torch"),
        (f"{CORE}/units.py", "from jax import numpy", "must work without jax"),
        ("examples/a.py", "import torch_tpu", "an example is plain PyTorch"),
    ],
)
def test_forbidden_import_is_refused(tmp_path: Path, file: str, text: str, expected: str) -> None:
    (message,) = messages(repository(tmp_path, {file: text}))
    assert expected in message
    assert message.startswith(f"{file}:{text.count(chr(10)) + 1}:")


def test_free_module_that_reaches_torch_through_another_is_refused(tmp_path: Path) -> None:
    files = {f"{CORE}/units.py": "from . import helper", f"{CORE}/helper.py": "import torch"}
    (message,) = messages(repository(tmp_path, files))
    assert "reaches torch through torchtpu_core.units -> torchtpu_core.helper" in message


def test_autoload_that_reaches_jax_through_its_package_is_refused(tmp_path: Path) -> None:
    files = {f"{CORE}/_autoload.py": "", f"{CORE}/__init__.py": "import jax"}
    found = messages(repository(tmp_path, files))
    assert any("import torch would import JAX" in message for message in found)


def test_import_under_type_checking_is_not_a_load(tmp_path: Path) -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import jax\n"
    assert messages(repository(tmp_path, {f"{CORE}/_autoload.py": text})) == []
