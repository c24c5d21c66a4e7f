# SPDX-License-Identifier: Apache-2.0
"""A word about recurrent layers that `torch.compile` leaves out.

Dynamo refuses `nn.LSTM`, `nn.GRU` and `nn.RNN` unless its configuration admits them, and then
skips the whole function that calls one, without a graph break to show. The setting is the
user's, for it is one of the process; here they are told of it, once.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import FrameType

import torch
from torchtpu_core.runtime import recurrent_layers, script_warnings

_LIBRARIES = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).parent),
    str(Path(recurrent_layers.__file__).parents[1]),
)

#: Where layers were left out of compiled code: lines of the user's.
seen: dict[str, None] = {}
#: The line that the user was told of.
_told: list[str] = []


class LeftOutWarning(UserWarning):
    """A part of a compiled function that runs eagerly though it need not."""


@functools.cache
def register() -> None:
    """Look at each call of a layer on the device from now on."""
    recurrent_layers.watchers.append(_look)


def advice(line: str) -> str:
    """What happened at a line of the user's, and how to change it."""
    return (
        f"the recurrent layer called at {line} runs eagerly, and so does the function that calls "
        "it: Dynamo leaves nn.LSTM, nn.GRU and nn.RNN out of graphs. Set "
        "torch._dynamo.config.allow_rnn = True before the first call to compile them"
    )


def _look() -> None:
    from torch._C._dynamo.eval_frame import get_eval_frame_callback
    from torch._dynamo import config

    if config.allow_rnn or not callable(get_eval_frame_callback()):
        return
    line = _line()
    seen[line] = None
    _warn_once(line)


def _line() -> str:
    """The innermost line that is neither torch's nor ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    if frame is None:
        return "an unknown line"
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _warn_once(line: str) -> None:
    if not _told:
        _told.append(line)
        message = f"<TorchTpu/compile> {advice(line)}."
        script_warnings.warn_at(line, message, LeftOutWarning)
