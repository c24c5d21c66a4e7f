# SPDX-License-Identifier: Apache-2.0
"""Undocumented names and names that vanish are found."""

from __future__ import annotations

import ast
from pathlib import Path

import check_public_names
import pytest
from sources import ROOT

HEAD = '# SPDX-License-Identifier: Apache-2.0\n"""A module."""\n'
FACADE = Path("packages", "torchtpu-core", "src", "torch_tpu")


def repository(root: Path, text: str) -> Path:
    """A repository whose facade is one module with the given text."""
    (root / FACADE).mkdir(parents=True)
    (root / FACADE / "__init__.py").write_text(HEAD + text)
    (root / "tools").mkdir()
    (root / "changelog").mkdir()
    return root


def test_repository_is_documented_and_the_list_is_current() -> None:
    assert check_public_names.main([], ROOT) == 0


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def f(): pass", ["f"]),
        ("def _f(): pass", []),
        ('class A:\n  """A."""\n  def m(self): pass\n  def __len__(self): pass', ["A.m"]),
        ("@overload\ndef f(): pass", []),
        ('def f():\n  """F."""\n  def inner(): pass', []),
    ],
)
def test_undocumented_names_what_lacks_a_docstring(text: str, names: list[str]) -> None:
    assert [n for n, _ in check_public_names.undocumented(ast.parse(text).body)] == names


def test_lowering_functions_need_no_docstring(tmp_path: Path) -> None:
    root = repository(tmp_path, "def mm(a, b): return a @ b\nTABLE = (mm,)\n")
    assert list(check_public_names.documentation_problems(root)) == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('__all__ = ["a", "b"]\ndef c(): pass', {"a", "b"}),
        ("from x import a as a, b\nimport os\n_c = 1\nd = 2\nclass E: pass", {"a", "d", "E"}),
    ],
)
def test_exported_names(text: str, names: set[str]) -> None:
    assert check_public_names.exported(ast.parse(text)) == names


def test_removed_name_needs_a_removal_fragment(tmp_path: Path) -> None:
    root = repository(tmp_path, "a = 1\nb = 1\n")
    assert check_public_names.main(["--write"], root) == 0
    (root / FACADE / "__init__.py").write_text(HEAD + "a = 1\n")
    (problem,) = check_public_names.list_problems(root)
    assert "torch_tpu.b was removed: restore it, or add changelog/" in problem.message
    (root / "changelog" / "1.removal.md").write_text("`b` is gone.\n")
    (problem,) = check_public_names.list_problems(root)
    assert "--write" in problem.message


def test_new_name_must_enter_the_list(tmp_path: Path) -> None:
    root = repository(tmp_path, "a = 1\n")
    problems = [p.message for p in check_public_names.list_problems(root)]
    assert problems == [
        "torch_tpu is new: document it and update the list with --write",
        "torch_tpu.a is new: document it and update the list with --write",
    ]
