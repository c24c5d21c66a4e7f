# SPDX-License-Identifier: Apache-2.0
"""The hooks: what this distribution hands to the device, and when.

The device loads this module at its first use, never at `import torch`. Each hook imports what it
needs when it is called, so that a listing of chips does not import JAX.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchtpu_core.hookspecs import hookimpl

if TYPE_CHECKING:
    import typer
    from torchtpu_core.hardware.chip import Chip
    from torchtpu_core.lowering.table import Lowering


@hookimpl
def torchtpu_register_lowerings() -> Iterable[Lowering]:
    """The row for `softcap`; importing its module defines the operator."""
    from torchtpu_plugin_example.softcap import TABLE

    return TABLE


@hookimpl
def torchtpu_register_chips() -> Iterable[Chip]:
    """The what-if chip."""
    from torchtpu_plugin_example.chip import v5e_with_double_bandwidth

    return (v5e_with_double_bandwidth(),)


@hookimpl
def torchtpu_cli_commands(app: typer.Typer) -> None:
    """Add `torchtpu ridge`."""
    from torchtpu_plugin_example.command import ridge

    app.command()(ridge)
