# SPDX-License-Identifier: Apache-2.0
"""`torchtpu plugins`: what was found, and what it extends."""

from __future__ import annotations

from torchtpu_core import plugins
from torchtpu_core.cli.console import print_table


def list_plugins() -> None:
    """List the plugins of this environment and the hooks they implement."""
    rows = [
        (record.name, record.distribution, record.status, record.error or ", ".join(record.hooks))
        for record in plugins.records()
    ]
    print_table(("plugin", "distribution", "status", "hooks or error"), rows)
