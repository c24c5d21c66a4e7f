# SPDX-License-Identifier: Apache-2.0
"""How a command ends when the user can fix what went wrong: a message, no traceback."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer

from torchtpu_core.errors import TorchTPUError

#: How a plan of what does not fit in HBM ends, once all is written.
DOES_NOT_FIT = 3

P = ParamSpec("P")
T = TypeVar("T")


def shown(command: Callable[P, T]) -> Callable[P, T]:
    """A command that prints this project's errors and exits with 1."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except TorchTPUError as error:
            typer.echo(f"{type(error).__name__}: {error}", err=True)
            raise typer.Exit(1) from error

    return run
