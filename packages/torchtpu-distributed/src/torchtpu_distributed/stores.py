# SPDX-License-Identifier: Apache-2.0
"""The control plane: PyTorch's store, and how ranks that share one find each other."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import distributed as dist

#: Pauses between two looks at keys that are not there yet.
_FIRST_NAP_S, _NAP_S = 0.001, 0.1


class Connections:
    """Connections to a store for calls that wait in it, each with one of its own meanwhile.

    They are used again: to make one is to ask the system for the name of the store's host, which
    may take seconds.

    Args:
        store: the store.
    """

    def __init__(self, store: dist.Store) -> None:
        self._store = store
        self._idle: list[dist.Store] = []

    @contextmanager
    def one(self) -> Iterator[dist.Store]:
        """One that nobody else uses; it is not used again after an error."""
        try:
            store = self._idle.pop()
        except IndexError:
            store = self._store.clone()
        yield store
        self._idle.append(store)


def generation(store: dist.Store, size: int) -> str:
    """A name for this world that no earlier one of the same store has.

    A store of torchrun outlives process groups, and may outlive a restart of the ranks, of which
    some may have ended before they counted themselves: each start counts anew.
    """
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    before = (int(store.add(f"worlds/{start}", 1)) - 1) // size
    return f"world{start}.{before}"


def wait(store: dist.Store, keys: Sequence[str], timeout_s: float) -> bool:
    """Wait for keys, and hear Ctrl-C, which the store's own wait does not; whether they came."""
    deadline, nap_s = time.monotonic() + timeout_s, _FIRST_NAP_S
    while not store.check(list(keys)):
        if time.monotonic() > deadline:
            return False
        time.sleep(nap_s)
        nap_s = min(1.5 * nap_s, _NAP_S)
    return True


def address_seen_by_ranks(store: dist.Store) -> str:
    """An address of this machine that every rank can reach: the one that reaches the store."""
    innermost = _innermost(store)
    if not isinstance(innermost, dist.TCPStore):
        return "127.0.0.1"  # a file or memory: all ranks are on this machine
    try:
        family, kind, _, _, target = socket.getaddrinfo(
            innermost.host, innermost.port, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


def is_hosted_by(store: dist.Store, rank: int) -> bool:
    """Whether a rank's process is probably the server of the store, which ends with it."""
    by_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return rank == 0 and not by_launcher and isinstance(_innermost(store), dist.TCPStore)


def _innermost(store: dist.Store) -> dist.Store:
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store
