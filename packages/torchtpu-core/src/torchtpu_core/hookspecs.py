# SPDX-License-Identifier: Apache-2.0
"""Every way a plugin can extend the device: pluggy hooks of the project `torchtpu`.

A plugin is a module with functions marked `hookimpl`, named by an entry point in the
group ``torchtpu``. The project's own parts are plugins too. Arguments may be added to
a hook, never renamed; an implementation lists the ones it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    import typer

    from torchtpu_core.execution import ExecutionMode
    from torchtpu_core.hardware.chip import Chip
    from torchtpu_core.ici.model import NetworkModel
    from torchtpu_core.ici.network import Network
    from torchtpu_core.lowering.table import Lowering
    from torchtpu_core.simulator.cost import ProgramCost

PROJECT = "torchtpu"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def torchtpu_execution_modes() -> Sequence[ExecutionMode]:  # type: ignore[empty-body]
    """Execution modes: when recorded ops run. Called once, when the device starts."""


@hookspec
def torchtpu_register_lowerings() -> Iterable[Lowering]:  # type: ignore[empty-body]
    """Rows for the lowering tables. A second row for an overload is an error."""


@hookspec
def torchtpu_register_chips() -> Iterable[Chip]:  # type: ignore[empty-body]
    """Chip models that targets may name."""


@hookspec
def torchtpu_register_kernels() -> Iterable[Callable[..., Any]]:  # type: ignore[empty-body]
    """Functions called once after the device has started, to define custom ops."""


@hookspec
def torchtpu_compile_backend() -> Callable[..., Any]:  # type: ignore[empty-body]
    """What `torch.compile` calls for ``backend="tpu"``: a Dynamo backend. The first one counts."""


@hookspec(firstresult=True)
def torchtpu_open_sizes(description: Any, sizes_seen: Sequence[Any], later: bool) -> Any | None:
    """A program for ops whose sizes vary, which serves other sizes too; None: one per size.

    Args:
        description: a trace of one op or of a group, as `torchtpu_core.runtime.trace_lowering`
            reads it.
        sizes_seen: what `torchtpu_core.runtime.varying.sizes_of` gave for each op when the script
            came by, the present time last; at least three times.
        later: compile on the compiling thread (`torchtpu_core.runtime.background.make_later`).

    Returns:
        A `torchtpu_core.runtime.programs.Program` for this description.

    Raises:
        torchtpu_core.runtime.groups.NotReadyError: it is being compiled.
    """


@hookspec(firstresult=True)
def torchtpu_cpu_client(device_count: int) -> Any | None:
    """The PJRT CPU client behind a simulated target, made when the device starts; None: not mine.

    Args:
        device_count: devices of this process, which the client must have.
    """


@hookspec(firstresult=True)
def torchtpu_host_wait(array: Any) -> bool | None:
    """Wait until an array is computed, in place of ``block_until_ready``; None: not mine.

    An implementation raises what would otherwise be an endless wait.

    Args:
        array: a ``jax.Array`` of the device's client, not deleted.
    """


@hookspec(firstresult=True)
def torchtpu_cost_model(cost: ProgramCost, target: str) -> int | None:
    """Simulated device time of one run of a program, in picoseconds; None: not mine.

    Args:
        cost: the program's work, from its StableHLO.
        target: name of the simulated target.
    """


@hookspec(firstresult=True)
def torchtpu_network_model(network: Network) -> NetworkModel | None:
    """What prices the collectives of programs on simulated slices; None: not mine.

    Args:
        network: the slices, rates and faults to model.
    """


@hookspec
def torchtpu_planned_process_group() -> None:
    """Called when a script that is planned makes its process group: serve its DTensors.

    The group is PyTorch's fake one, so nothing that a real group brings is there.
    """


@hookspec
def torchtpu_cli_commands(app: typer.Typer) -> None:
    """Add commands to `torchtpu`.

    Args:
        app: the command's typer application.
    """


@hookspec
def torchtpu_after_compile(name: str, stablehlo: str, seconds: float) -> None:
    """Called after each compilation; not for programs found by the key of their trace.

    Args:
        name: the program's name.
        stablehlo: its StableHLO text.
        seconds: wall time of tracing and compiling.
    """
