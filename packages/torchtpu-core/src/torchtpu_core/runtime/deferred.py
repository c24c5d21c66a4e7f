# SPDX-License-Identifier: Apache-2.0
"""Raising what the device found while it ran."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import torch
from jax.errors import JaxRuntimeError

from torchtpu_core.errors import DeferredIndexError, ProgramFailedError, TorchTPUError
from torchtpu_core.runtime import memory


def failed_check(program: Any, flags: Any) -> tuple[type[Exception], str, int] | None:
    """The first failed check: error class, message and index of the trace's node."""
    try:
        failed = np.asarray(flags)
    except JaxRuntimeError as error:
        memory.raise_of_run(error)
    if not failed.any():
        return None
    return program.checks[int(np.argmax(failed))]


def raise_check(error: type[Exception], message: str, line: str) -> NoReturn:
    """Raise a failed check with the user's line, once if the message has it already."""
    message = message.replace(f" (called at {line})", "")
    if error is IndexError:
        raise DeferredIndexError.at_call(message, line or "an unknown line")
    raise error(f"{message} (called at {line or 'an unknown line'}; found when the program ran)")


def add_line(error: BaseException, line: str) -> None:
    """Say in the error's message where the op was called that raised it later."""
    where = f"(called at {line or 'an unknown line'}; found when the trace ran)"
    if error.args and isinstance(error.args[0], str) and where not in error.args[0]:
        error.args = (f"{error.args[0]} {where}", *error.args[1:])


def add_line_of_run(error: BaseException, line: str) -> None:
    """Say where the op was called whose value was waited for, if its program failed."""
    if isinstance(error, (ProgramFailedError, torch.OutOfMemoryError)):
        add_line(error, line)


def raise_failed_operand() -> NoReturn:
    """Refuse to read a tensor whose program failed."""
    raise TorchTPUError(
        "this tensor has no value: the program that should have computed it failed, and its "
        "error was raised before. Fix that error, or re-create the tensor."
    )
