# SPDX-License-Identifier: Apache-2.0
"""What a plan says when the user's script fails: the script's own traceback, and a way out."""

from __future__ import annotations

import contextlib
import logging
import sys
import textwrap
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch

from torchtpu_core.errors import TorchTPUError
from torchtpu_core.plan.user_lines import LIBRARIES

_TORCH = Path(torch.__file__).parent
_MACHINERY = (
    *("_subclasses", "_prims_common", "_decomp", "_meta_registrations.py", "_compile.py"),
    *("_dynamo", "_ops.py", "__init__.py", "utils/_stats.py", "_refs", "_prims"),
)
_LEFT_OUT = (str(Path(__file__).parent.parent), *(str(_TORCH / part) for part in _MACHINERY))
#: Characters of an error that the last line repeats.
_LONGEST = 400
_CUDA = (
    " A plan runs on the device 'tpu': choose it, or torch.accelerator.current_accelerator(), "
    "where the script chooses CUDA."
)

_INPUT = (
    " The script asks for input() and there is nobody to answer: take the value from an option, or "
    "pipe the answers into the plan (`yes 4 | torchtpu plan ...`)."
)

#: The code by which parsers of arguments end a script.
_USAGE = 2
_OPTIONS = " The script's own options go after `--`: torchtpu plan SCRIPT --target ... -- OPTIONS."


def explained(script: Path, error: BaseException) -> str:
    """The message for a script that failed.

    Args:
        script: the user's script.
        error: what it raised.
    """
    line = _line(error)
    at = f" at {line}" if line else ""
    # The traceback above has all of it.
    said = textwrap.shorten(str(error).strip(), _LONGEST, placeholder=" ...") or "no message"
    hint = _CUDA if "cuda" in said.lower() else ""
    if isinstance(error, EOFError) and "reading a line" in said:
        hint = _INPUT
    return (
        f"{script} failed{at} while it ran without values: {type(error).__name__}: {said}"
        f"{'' if said.endswith(('.', '!')) else '.'}{hint}"
    )


def exited(script: Path, code: object) -> str:
    """The message for a script that ended itself by `sys.exit`."""
    hint = _OPTIONS if code == _USAGE else ""
    return f"{script} ended itself by sys.exit({code!r}).{hint}"


def add_line(error: TorchTPUError) -> None:
    """Names the line of a mistake that is refused by us, such as a mesh that does not divide."""
    line, said = _line(error), str(error)
    if line and line not in said:
        error.args = (f"{line}: {said}",)


def _line(error: BaseException) -> str:
    """The user's innermost line that an error came through; empty if there is none."""
    where = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(LIBRARIES)
    ]
    return f"{where[-1].filename}:{where[-1].lineno}" if where else ""


def show_traceback(error: BaseException) -> None:
    """Prints the traceback of the script and of libraries it calls.

    Left out are the plan's frames and those of PyTorch's machinery of shapes and dispatch, which a
    run on a device does not have.
    """
    shown = traceback.TracebackException.from_exception(error)
    _trim(shown)
    print("".join(shown.format()), file=sys.stderr, end="")


@contextlib.contextmanager
def quiet_shapes() -> Iterator[None]:
    """PyTorch's log does not repeat an error of shapes that the script's traceback has."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def _trim(shown: traceback.TracebackException | None) -> None:
    if shown is None:
        return
    kept = [frame for frame in shown.stack if not frame.filename.startswith(_LEFT_OUT)]
    shown.stack = traceback.StackSummary.from_list(kept)
    _trim(shown.__cause__)
    _trim(shown.__context__)
