# SPDX-License-Identifier: Apache-2.0
"""The plugin: a client that reaches the other processes, waits that cannot hang, and `run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtpu_core.hookspecs import hookimpl

from torchtpu_distributed import active

if TYPE_CHECKING:
    import typer


@hookimpl
def torchtpu_cpu_client(device_count: int) -> Any | None:
    """The distributed client, while a process group is being made; else a rank may stay alone."""
    if active.make_client is not None:
        return active.make_client(device_count)
    from torchtpu_distributed import unjoined

    unjoined.watch()
    return None


@hookimpl
def torchtpu_host_wait(array: Any) -> bool | None:
    """Wait for an array, or raise what keeps a collective before it from finishing."""
    if active.world is None:
        return None
    active.world.ledger.wait_for(array)
    return True


@hookimpl
def torchtpu_planned_process_group() -> None:
    """Attention along the sequence, and optimizers of mixed parameters, as in a real group."""
    from torchtpu_distributed import creation

    creation.serve_dtensors()


@hookimpl
def torchtpu_cli_commands(app: typer.Typer) -> None:
    """Add ``torchtpu run``."""
    from torchtpu_distributed import command

    app.command("run", context_settings=command.CONTEXT)(command.run)
