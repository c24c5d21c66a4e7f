# SPDX-License-Identifier: Apache-2.0
"""A rank that a script reads from its environment, as `torchrun` gives it, is followed.

``os.environ["RANK"]`` is a text that remembers what other ranks would read. A script makes a
number of it by ``int(...)``, which in Python forgets what its operand was; so calls of `int` in the
user's own files, and in these alone, go to a function that makes a watched rank. Numbers that are
made in other ways (a parser's ``type=int``, a library) are plain, and a note says so.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import os
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any
from unittest import mock

import numpy as np

from torchtpu_core.ici.fabric import Ints
from torchtpu_core.plan.ranks import Branches, Rank, by_user
from torchtpu_core.plan.user_lines import LIBRARIES

_INT = "__torchtpu_plan_int__"
#: Files of ``os.getenv`` and ``os.environ.get``.
_READERS = frozenset(f.__code__.co_filename for f in (os.getenv, Mapping.get))


class RankText(str):
    """The text of a rank that knows what the others have in its place."""

    everyone: Ints
    branches: Branches

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str) and by_user():
            self._compared(other)
        return str(self) == other

    def __ne__(self, other: object) -> bool:
        if isinstance(other, str) and by_user():
            self._compared(other)
        return str(self) != other

    __hash__ = str.__hash__

    def _compared(self, other: str) -> None:
        self.branches.followed.add("text")
        self.branches.note([str(rank) == other for rank in self.everyone])


def _int(*args: Any, **kwargs: Any) -> int:
    """``int``, of a rank's text a rank."""
    value = args[0] if args else None
    if isinstance(value, RankText):
        value.branches.followed.add("number")
        return Rank.of(int(str(value)), value.everyone, value.branches)
    return value if isinstance(value, Rank) else int(*args, **kwargs)


class _Calls(ast.NodeTransformer):
    """Calls of `int` become calls of `_int`."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "int":
            node.func.id = _INT
        return node


def compiled(source: bytes, path: str) -> CodeType:
    """The code of a user's file.

    Raises:
        SyntaxError: as Python's own compiler, which tells it best.
    """
    if b"RANK" not in source:
        return compile(source, path, "exec", dont_inherit=True)
    return compile(_Calls().visit(ast.parse(source, path)), path, "exec", dont_inherit=True)


def follow(stack: contextlib.ExitStack, branches: Branches | None, devices_per_host: int) -> None:
    """Has ranks of the environment watched until the stack is left; not at all without branches."""
    stack.enter_context(mock.patch.object(builtins, _INT, _int, create=True))
    really_get_code = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        path = str(self.get_filename(fullname))
        if path.startswith(LIBRARIES):
            return really_get_code(self, fullname)
        return compiled(self.get_data(path), path)

    stack.enter_context(mock.patch.object(SourceFileLoader, "get_code", get_code))
    if branches is None:
        return
    ranks = np.arange(branches.world)
    everyone = {
        "RANK": ranks,
        "LOCAL_RANK": ranks % devices_per_host,
        "GROUP_RANK": ranks // devices_per_host,
    }
    given = {name: os.environ[name] for name in everyone}
    really_get = os._Environ.__getitem__

    def get(self: Any, key: Any) -> Any:
        value = really_get(self, key)
        if key not in everyone or value != given[key]:
            return value
        text = RankText(value)
        text.everyone, text.branches = everyone[key], branches
        if by_user(_READERS):
            branches.followed.add("read")
        return text

    stack.enter_context(mock.patch.object(os._Environ, "__getitem__", get))
