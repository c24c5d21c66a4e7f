# SPDX-License-Identifier: Apache-2.0
"""The plugin: a client that reaches the other processes, and waits that cannot hang."""

from __future__ import annotations

from typing import Any

from torchtpu_core.hookspecs import hookimpl

from torchtpu_distributed import active


@hookimpl
def torchtpu_cpu_client(device_count: int) -> Any | None:
    """The distributed client, while a process group is being made."""
    return active.make_client(device_count) if active.make_client is not None else None


@hookimpl
def torchtpu_host_wait(array: Any) -> bool | None:
    """Wait for an array, or raise what keeps a collective before it from finishing."""
    if active.world is None:
        return None
    active.world.ledger.wait_for(array)
    return True
