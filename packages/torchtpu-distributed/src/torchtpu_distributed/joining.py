# SPDX-License-Identifier: Apache-2.0
"""A PJRT CPU client that sees the devices of all ranks.

If a process group is made before the device starts, core's own client is made this
way, and collectives run on the tensors' own arrays. If the device has started, its
client cannot change: collectives get a second client, and arrays are copied over.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax  # noqa: F401 - before jaxlib, whose log level it sets
from jaxlib import _jax, xla_client
from torchtpu_core.runtime import clients

from torchtpu_distributed import active, coordinator

#: What keeps joined clients working for the life of the process: PJRT clients are never
#: destroyed, so neither may their connections be.
_alive: list[Any] = []


@dataclass(frozen=True, slots=True)
class Joined:
    """A client that is connected to those of the other ranks.

    Attributes:
        client: the PJRT client.
        is_core: whether it is the one behind the device, so that arrays need no copy.
        service: address of the service that connected it.
        size: number of ranks.
    """

    client: Any
    is_core: bool
    service: str
    size: int


_core: Joined | None = None


def core_service() -> str:
    """Address of the service that connected core's client, empty if none has."""
    return _core.service if _core is not None else ""


def core_client(size: int) -> Joined | None:
    """Core's client if it is connected to `size` ranks, all of them alive at last look."""
    return _core if _core is not None and _core.size == size else None


def alone() -> Joined:
    """The client of a world of one."""
    return Joined(clients.client(), True, "", 1)


def join(
    service: str,
    lifeline: str,
    rank: int,
    size: int,
    device_count: int,
    timeout_s: float,
    meet: Callable[[], None],
) -> Joined:
    """Connect this process; blocks until all ranks have.

    Args:
        service: address of the coordination service.
        lifeline: address to stay connected to, so that the service stays.
        rank: this rank.
        size: number of ranks.
        device_count: devices of this process.
        timeout_s: seconds to wait for the other ranks.
        meet: returns when all ranks are about to connect.
    """
    global _core

    def make(count: int) -> Any:
        meet()
        return _make(service, lifeline, rank, size, count, timeout_s)

    if clients.is_made():
        return Joined(make(device_count), False, service, size)
    active.make_client = make
    try:
        client = clients.client()
    finally:
        active.make_client = None
    if len(client.devices()) == len(client.local_devices()):  # the plugin was disabled
        return Joined(make(device_count), False, service, size)
    _core = Joined(client, True, service, size)
    return _core


def _make(
    service: str, lifeline: str, rank: int, size: int, device_count: int, timeout_s: float
) -> Any:
    connection: socket.socket = coordinator.connect_lifeline(lifeline)
    runtime = _jax.get_distributed_runtime_client(
        service,
        rank,
        init_timeout=max(1, math.ceil(timeout_s)),
        heartbeat_timeout=coordinator.HEARTBEAT_TIMEOUT_S,
        shutdown_on_destruction=False,
        use_compression=True,
    )
    runtime.connect()
    host = connection.getsockname()[0]
    collectives = _jax.make_gloo_tcp_collectives(distributed_client=runtime, hostname=host)
    # The descriptor without its Python object, which the interpreter would close on its way
    # out: the service would end while this process still listens to it, and XLA abort.
    _alive.extend([connection.detach(), runtime, collectives])
    return xla_client.make_cpu_client(
        asynchronous=True,
        distributed_client=runtime,
        node_id=rank,
        num_nodes=size,
        collectives=collectives,
        num_devices=device_count,
    )
