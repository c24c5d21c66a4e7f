# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for what test files of an earlier PyTorch import and the installed one lacks.

A file that cannot be imported tests nothing, often for the sake of one helper that is for CUDA.
A stand-in decorates without effect, is false, empty, and gives itself when called. It knows
nothing of what the name once did: a test that needs it fails, here and on the CPU.
"""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any


class GoneName:
    """Stands for a function, decorator or constant that no longer exists.

    >>> gone = GoneName("tf32_off")
    >>> gone(max) is not max, bool(gone()), gone
    (True, False, <gone: tf32_off>)
    >>> [1] + gone
    [1]
    >>> def test(): ...
    >>> gone(test) is test and gone("a reason")(test) is test
    True
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *arguments: Any, **_: Any) -> Any:
        decorates = len(arguments) == 1 and isinstance(arguments[0], (FunctionType, type))
        return arguments[0] if decorates else self

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Any:
        return iter(())

    def __add__(self, other: Any) -> Any:
        return other

    __radd__ = __add__

    def __repr__(self) -> str:
        return f"<gone: {self._name}>"


def supply_gone_names(test_file: Path) -> list[str]:
    """Give the modules of PyTorch that a file imports from what they lack; the names supplied."""
    supplied = []
    for node in ast.parse(test_file.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch."):
            module = _module(str(node.module))
            for name in (alias.name for alias in node.names):
                if not _has(module, name):
                    setattr(module, name, GoneName(name))
                    supplied.append(f"{module.__name__}.{name}")
    return supplied


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return sys.modules.setdefault(name, ModuleType(name))


def _has(module: ModuleType, name: str) -> bool:
    if name == "*" or hasattr(module, name):
        return True
    try:
        importlib.import_module(f"{module.__name__}.{name}")
    except ImportError:
        return False
    return True
