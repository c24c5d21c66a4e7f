# SPDX-License-Identifier: Apache-2.0
"""Which line of the user's an operator comes from.

Forward operators: the innermost frame outside libraries. Backward operators: the line of
the forward operator whose gradient they compute, found by autograd's sequence number.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import CodeType, FrameType

import torch

_LIBRARIES = (
    sysconfig.get_paths()["stdlib"],
    sysconfig.get_paths()["purelib"],
    str(Path(torch.__file__).parent),
    str(Path(__file__).parent.parent),
    "<frozen",
)


class UserLines:
    """Finds lines; remembers which code is a library's and which forward line a node has."""

    def __init__(self) -> None:
        self._library: dict[CodeType, bool] = {}
        self._forward: dict[int, str] = {}

    def forward(self) -> str:
        """The line that runs now; its autograd node, if one was made, is remembered."""
        line = self._find(sys._getframe(2))
        if torch.is_grad_enabled():
            self._forward[torch.autograd._get_sequence_nr() - 1] = line
        return line

    def backward(self) -> str:
        """The forward line of the autograd node that runs now, else the line of the call."""
        node = torch._C._current_autograd_node()
        if node is not None:
            found = self._forward.get(node._sequence_nr())
            if found is not None:
                return found
        return self._find(sys._getframe(2))

    def _find(self, frame: FrameType | None) -> str:
        while frame is not None:
            code = frame.f_code
            library = self._library.get(code)
            if library is None:
                library = code.co_filename.startswith(_LIBRARIES)
                self._library[code] = library
            if not library:
                return f"{code.co_filename}:{frame.f_lineno}"
            frame = frame.f_back
        return "(no line of the script)"
