# SPDX-License-Identifier: Apache-2.0
"""`torchtpu env`: every environment variable, its value and its meaning."""

from __future__ import annotations

import os
from typing import Any

from torchtpu_core import env_vars, plugins
from torchtpu_core.cli.console import print_table


def _shown(value: Any) -> str:
    if value is None or value == frozenset():
        return "-"
    if isinstance(value, frozenset):
        return ",".join(sorted(value))
    return str(value)


def env() -> None:
    """List the TORCH_TPU_* variables: value if set, default, allowed values, meaning."""
    plugins.manager()  # plugins declare variables of their own
    rows = []
    for row in env_vars.table():
        default = row.default() if callable(row.default) else row.default
        value = os.environ.get(row.name, "-")
        if row.secret:
            default, value = None, "(set)" if row.name in os.environ else "-"
        rows.append((row.name, value, _shown(default), row.allowed, row.meaning))
    print_table(("variable", "set to", "default", "allowed", "meaning"), rows)
