# SPDX-License-Identifier: Apache-2.0
"""Which line of the user's an operator comes from.

Forward operators: the innermost frame outside libraries, and the module of a library that it is
part of if that frame calls a whole model (`module_names.py`). Backward operators: the line of
the forward operator whose gradient they compute, found by autograd's sequence number. Numbers
are counted by thread, and a recomputation runs in the thread of the backward pass: its nodes
are kept apart, and looked for in the inner backward pass that runs them.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CodeType, FrameType

import torch

from torchtpu_core.plan.module_names import ModuleNames

#: This project's packages: in a checkout they are not where libraries lie.
_OWN = (
    *("torch_tpu", "torchtpu_core", "torchtpu_eager", "torchtpu_compile"),
    *("torchtpu_distributed", "torchtpu_kernels"),
)


def _folders(packages: Iterable[str]) -> tuple[str, ...]:
    """Where the packages lie that are installed; imports none of them."""
    found = (importlib.util.find_spec(package) for package in packages)
    return tuple(str(Path(spec.origin).parent) for spec in found if spec and spec.origin)


_INSTALLED = sysconfig.get_paths()["purelib"]
_TORCH = Path(torch.__file__).parent
_TORCHS = (str(_TORCH), *_folders(_OWN))
_ON_THE_WAY = (
    *("_tensor.py", "_ops.py", "overrides.py", "_compile.py", "_dynamo"),
    "utils/_python_dispatch.py",
)
#: What lies between a tensor's method and a dispatch mode.
_DISPATCH = (*_folders(_OWN), *(str(_TORCH / name) for name in _ON_THE_WAY))
#: Where code lies that is not the user's.
LIBRARIES = (sysconfig.get_paths()["stdlib"], _INSTALLED, *_TORCHS, "<frozen")
#: A line with a module's name behind it.
_NAMED = re.compile(r"(:\d+) in [^\s/]+$")
NO_PASS = -1
NO_LINE = "(no line of the script)"
#: Nodes before a node without a line among which one with a line is looked for.
FARTHEST = 32


def _without_name(line: str) -> str:
    return _NAMED.sub(r"\1", line)


def _backward_pass() -> int:
    """The number of the backward pass that runs in this thread, or `NO_PASS`."""
    return int(torch._C._current_graph_task_id())


class UserLines:
    """Finds lines; remembers which code is a library's and which forward line a node has.

    Attributes:
        modules: the modules whose calls are followed.
    """

    def __init__(self) -> None:
        self.modules = ModuleNames(lambda file: file.startswith(LIBRARIES))
        self._library: dict[CodeType, bool] = {}
        self._forward: dict[int, str] = {}
        self._recomputed: dict[int, str] = {}
        self._outer_pass = NO_PASS
        self._latest = ""

    def forward(self) -> str:
        """The line that runs now; its autograd node, if one was made, is remembered.

        What a library recomputes has no line of its own: it has that of the node that asks for it.
        """
        return self._forward_line(sys._getframe(2))

    def _forward_line(self, frame: FrameType | None) -> str:
        line, in_pass, label = self._find(frame), _backward_pass(), self.modules.label
        if line == NO_LINE and in_pass != NO_PASS:
            line = self._of_node(self._forward) or self._latest or line
            line = _without_name(line) if label else line
        line += label
        if torch.is_grad_enabled():
            number = torch.autograd._get_sequence_nr() - 1
            if in_pass == NO_PASS:
                self._recomputed.clear()
                self._forward.setdefault(number, line)  # later ones may have no node
            else:
                self._outer_pass = in_pass
                self._recomputed.setdefault(number, line)
        return line

    def backward(self) -> str:
        """The forward line of the autograd node that runs now, else the line of the call."""
        inner = self._recomputed and _backward_pass() != self._outer_pass
        known = self._of_node(self._recomputed if inner else self._forward)
        if known:
            self._latest = known
            return known
        line = self._find(sys._getframe(2))
        # Gradients that are added up, or sent, have no node: they are those of the last one.
        return self._latest if line == NO_LINE and self._latest else line

    def _of_node(self, known: Mapping[int, str]) -> str:
        """The line of the forward operator of the autograd node that runs now, or nothing."""
        node = torch._C._current_autograd_node()
        if node is None:
            return ""
        number = node._sequence_nr()
        # A function of Python's takes a number of its own, after its operators'.
        return next((known[n] for n in range(number, number - FARTHEST, -1) if n in known), "")

    def reading(self) -> str:
        """The line that runs now, and the place in a library that does what it asks for.

        PyTorch's own code is no such place: ``loss.item()`` of the user's is the user's line alone.
        """
        frame: FrameType | None = sys._getframe(2)
        line = self._forward_line(frame)
        while frame is not None and self._is_library(frame.f_code):
            file = frame.f_code.co_filename
            if file.startswith(_INSTALLED) and not file.startswith(_TORCHS):
                place = Path(file).relative_to(_INSTALLED).as_posix()
                return f"{_without_name(line)} in {place}:{frame.f_lineno}"
            frame = frame.f_back
        return line

    def asking(self) -> FrameType | None:
        """The frame that asks for the value of a tensor that is read now."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename.startswith(_DISPATCH):
            frame = frame.f_back
        return frame

    def of_frame(self, frame: FrameType | None) -> str:
        """The innermost line of the user's from a frame outwards."""
        return self._find(frame)

    def within(self, package: str) -> bool:
        """Whether a package is among the libraries that run now for the user's line."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and self._is_library(frame.f_code):
            if frame.f_globals.get("__name__", "").startswith(package):
                return True
            frame = frame.f_back
        return False

    def _is_library(self, code: CodeType) -> bool:
        library = self._library.get(code)
        if library is None:
            library = self._library[code] = code.co_filename.startswith(LIBRARIES)
        return library

    def _find(self, frame: FrameType | None) -> str:
        while frame is not None:
            if not self._is_library(frame.f_code):
                return f"{frame.f_code.co_filename}:{frame.f_lineno}"
            frame = frame.f_back
        return NO_LINE
