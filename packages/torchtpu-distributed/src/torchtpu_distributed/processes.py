# SPDX-License-Identifier: Apache-2.0
"""Who the ranks are: host and process, and whether a process still runs.

On one host the kernel knows at once and for certain that a process has ended; for
other hosts there are only heartbeats (`watch`).
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

#: How addresses begin that only processes of the same machine reach.
LOOPBACK = ("127.", "localhost", "::1")
#: Time between two looks whether a process still runs.
_LOOK_S = 0.05
#: After the end of a process, how long its launcher may need to see it. torchrun looks every 0.1 s.
_SEEN_S = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One rank's process.

    Attributes:
        rank: its number in the world.
        host: equal for processes that can see each other's process numbers.
        hostname: for messages.
        pid: process number.
        started: start time in clock ticks, which tells a reused number apart.
        service: address of the service its device already uses, empty if it uses none.
        address: of its machine, as its way to the store has it; empty if none leads there.
        store_address: of the store, as it sees it.
    """

    rank: int
    host: str
    hostname: str
    pid: int
    started: int
    service: str = ""
    address: str = ""
    store_address: str = ""

    def encode(self) -> str:
        """As text for the store."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str | bytes) -> Process:
        """From the text of `encode`."""
        return cls(**json.loads(text))

    @property
    def name(self) -> str:
        """How messages name it."""
        return f"rank {self.rank} (process {self.pid} on {self.hostname})"


def this_process(rank: int, service: str, route: tuple[str, str] = ("", "")) -> Process:
    """The record of the calling process.

    Args:
        rank: its number in the world.
        service: address of the service its device already uses.
        route: its own address on the way to the store, and the store's.
    """
    pid = os.getpid()
    state = _state(pid)
    return Process(
        rank=rank,
        host=_host_key(),
        hostname=socket.gethostname(),
        pid=pid,
        started=state[1] if state else 0,
        service=service,
        address=route[0],
        store_address=route[1],
    )


def reachable_address(process: Process, peers: Iterable[Process]) -> str:
    """An address of a process's machine that every peer can reach.

    It is the one from which the process reaches the store. On the store's own machine that may be
    a loopback address, which only its own processes reach (Debian gives a machine's name to
    127.0.1.1): then it is the store's, as ranks on other machines have it. The name of a machine
    is used where the store tells nothing, as a file does not.
    """
    if process.address and not process.address.startswith(LOOPBACK):
        return process.address
    if process.address:
        from_afar = (p.store_address for p in peers if not p.address.startswith(LOOPBACK))
        return next(filter(None, from_afar), process.address)
    alone = all(p.host == process.host for p in peers)
    return "127.0.0.1" if alone else process.hostname


def is_running(process: Process) -> bool | None:
    """Whether the process still runs; None if it is on another host, so unknown here."""
    if not process.host or process.host != _host_key():
        return None
    state = _state(process.pid)
    return state is not None and state[0] not in "ZX" and state[1] == process.started


def dead_within(patience_s: float, processes: Collection[Process]) -> list[Process]:
    """The processes that have ended; one's connections end a little before it does."""
    deadline = time.monotonic() + patience_s
    while True:
        dead = [process for process in processes if is_running(process) is False]
        if dead or time.monotonic() > deadline:
            return dead
        time.sleep(_LOOK_S)


def let_end(process: Process, patience_s: float) -> None:
    """Wait until a process has ended, and whoever looks after it had time to see that.

    One that is stopped, or on another host, is not waited for.
    """
    deadline = time.monotonic() + patience_s
    while is_running(process) and not is_stopped(process) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    if is_running(process) is False:
        time.sleep(_SEEN_S)


def is_stopped(process: Process) -> bool:
    """Whether the process is known to be stopped, by a signal or a debugger."""
    if not process.host or process.host != _host_key():
        return False
    state = _state(process.pid)
    return state is not None and state[0] in "Tt" and state[1] == process.started


def _host_key() -> str:
    """Boot and process namespace; empty where the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _state(pid: int) -> tuple[str, int] | None:
    """State letter and start time of a process, None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])
