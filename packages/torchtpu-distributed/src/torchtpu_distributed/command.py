# SPDX-License-Identifier: Apache-2.0
"""The command `torchtpu run`."""

from __future__ import annotations

from typing import Annotated

import typer
from torchtpu_core.errors import TorchTPUError

#: Options end at the script; what follows is the script's.
CONTEXT = {"allow_interspersed_args": False}


def run(
    script: Annotated[list[str], typer.Argument(help="The script and its arguments.")],
    chips: Annotated[int, typer.Option(help="Simulated chips, with one process each.")] = 4,
    target: Annotated[
        str | None,
        typer.Option(help="Simulated slice; by default the smallest of v5e that is large enough."),
    ] = None,
    max_restarts: Annotated[
        int, typer.Option(help="How often all ranks start again when one fails.")
    ] = 0,
    module: Annotated[bool, typer.Option("--module", "-m", help="The script is a module.")] = False,
) -> None:
    """Run a script on simulated chips of this machine, one process per chip."""
    from torchtpu_distributed import launch

    try:
        chosen = launch.plan(chips, target)
    except TorchTPUError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        raise typer.Exit(2) from error
    code = launch.run(chosen, script, restarts=max_restarts, module=module)
    raise typer.Exit(code if 0 <= code < 128 else 1)
