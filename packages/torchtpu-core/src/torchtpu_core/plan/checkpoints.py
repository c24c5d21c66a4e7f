# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a script that is planned: nothing is written, since there are no values.

What the script saved and loads again it gets back as it was; files from before are read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.distributed import checkpoint

from torchtpu_core.plan.recorder import Recorder


def keep_from_disk(stack: contextlib.ExitStack, recorder: Recorder) -> None:
    """Has the script's checkpoints stay in memory until the stack is left."""
    kept: dict[Any, tuple[Any, Any]] = {}  # the file too: its id is its name while it lives
    really_load = torch.load

    def save(obj: Any, f: Any, *_: Any, **__: Any) -> None:
        kept[_name(f)] = f, obj
        _note(recorder)

    def load(f: Any, *args: Any, **kwargs: Any) -> Any:
        name = _name(f)
        return kept[name][1] if name in kept else really_load(f, *args, **kwargs)

    for module in (torch, torch.serialization):
        stack.enter_context(mock.patch.object(module, "save", save))
        stack.enter_context(mock.patch.object(module, "load", load))
    for name in ("save", "async_save", "load"):
        stack.enter_context(mock.patch.object(checkpoint, name, _nothing(recorder, name)))


def _nothing(recorder: Recorder, name: str) -> Callable[..., Any]:
    """A function of `torch.distributed.checkpoint` that leaves disk and tensors alone."""

    def done(*_: Any, **__: Any) -> Any:
        if name != "load":
            _note(recorder)
        return _Done() if name == "async_save" else None

    return done


class _Done:
    """The future of a checkpoint that is not written."""

    def result(self, timeout: float | None = None) -> None:
        """Nothing, at once."""

    def done(self) -> bool:
        """It is."""
        return True


def _name(file: Any) -> Any:
    return Path(file).absolute() if isinstance(file, (str, os.PathLike)) else id(file)


def _note(recorder: Recorder) -> None:
    note = f"{recorder.lines.forward()} saves a checkpoint: a plan has no values and writes none"
    if note not in recorder.recording.notes:
        recorder.recording.notes.append(note)
