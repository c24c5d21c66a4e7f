# SPDX-License-Identifier: Apache-2.0
"""The command's skeleton: its own commands and those of plugins."""

from __future__ import annotations

import typer

from torchtpu_core import plugins
from torchtpu_core.cli import cache, ops
from torchtpu_core.cli.coverage import coverage
from torchtpu_core.cli.doctor import doctor
from torchtpu_core.cli.environment import env
from torchtpu_core.cli.plan import ScriptCommand, advise, plan
from torchtpu_core.cli.plugin_list import list_plugins
from torchtpu_core.cli.sweep import scale, sweep
from torchtpu_core.cli.validate import validate


def make_app() -> typer.Typer:
    """The command with every plugin's commands; a broken plugin is a warning."""
    app = typer.Typer(
        name="torchtpu",
        help="Look at the tpu device of PyTorch.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.command()(doctor)
    app.command("plugins")(list_plugins)
    app.command()(env)
    app.command()(coverage)
    app.command()(validate)
    app.command(cls=ScriptCommand)(plan)
    app.command(cls=ScriptCommand)(advise)
    app.command()(sweep)
    app.command()(scale)
    app.add_typer(cache.app, name="cache")
    app.add_typer(ops.app, name="ops")
    plugins.collect("torchtpu_cli_commands", app=app)
    return app


def main() -> None:
    """Run the command."""
    make_app()()
