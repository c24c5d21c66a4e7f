# SPDX-License-Identifier: Apache-2.0
"""Python functions that Dynamo must neither trace nor look into.

Ops run between the graphs of a compiled region; the frames that C++ enters there are
the runtime's and JAX's, and Dynamo would take them for the user's. The mark is on the
code object, with everything it calls: it costs nothing per call.
"""

from __future__ import annotations

from types import CodeType, FunctionType
from typing import Any


def untraced(function: Any) -> Any:
    """`function`, marked."""
    _mark(function.__code__)
    return function


def untraced_closures(function: FunctionType) -> None:
    """Mark the functions that are defined inside `function`."""
    for constant in function.__code__.co_consts:
        if isinstance(constant, CodeType):
            _mark(constant)


def _mark(code: CodeType) -> None:
    import torch

    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP  # type: ignore[attr-defined]
    frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))  # type: ignore[attr-defined]
