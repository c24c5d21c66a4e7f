# SPDX-License-Identifier: Apache-2.0
"""Which files of the repository the checks look at.

The checks read text and syntax trees only: they import nothing of the project, so they run
before anything is built.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("packages", "examples", "tools", "benchmarks", "docs")
SKIPPED = frozenset({"build", "dist", "_build", "generated", "__pycache__"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something a check objects to.

    Attributes:
        path: the file, relative to the repository.
        line: where in it, from 1.
        message: what is wrong and what to do.
    """

    path: Path
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def files(root: Path, suffixes: Iterable[str], folders: Iterable[str] = FOLDERS) -> Iterator[Path]:
    """Files with one of the suffixes: at the top of the repository and in the given folders."""
    wanted = set(suffixes)
    for folder in (root, *(root / name for name in folders)):
        found = folder.iterdir() if folder == root else folder.rglob("*")
        for path in sorted(found):
            parts = path.relative_to(root).parts
            skipped = any(
                p in SKIPPED or p.startswith(".") or p.endswith(".egg-info") for p in parts
            )
            if path.suffix in wanted and not skipped and path.is_file():
                yield path


def modules(root: Path) -> dict[str, Path]:
    """Every module of every distribution, by its dotted name."""
    found: dict[str, Path] = {}
    for source in sorted(root.glob("packages/*/src")):
        for path in sorted(source.rglob("*.py")):
            parts = path.relative_to(source).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def tree(path: Path) -> ast.Module:
    """The syntax tree of a Python file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def report(problems: list[Problem], name: str) -> int:
    """Print the problems of a check; return its exit code."""
    for problem in problems:
        print(problem)
    print(f"{name}: {len(problems)} problem(s)" if problems else f"{name}: ok")
    return 1 if problems else 0
