# SPDX-License-Identifier: Apache-2.0
"""The control plane: PyTorch's store, and how ranks that share one find each other."""

from __future__ import annotations

import os
import socket

from torch import distributed as dist


def generation(store: dist.Store, size: int) -> str:
    """A name for this world that no earlier one of the same store has.

    A store of torchrun outlives process groups, and may outlive a restart of the ranks, of which
    some may have ended before they counted themselves: each start counts anew.
    """
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    before = (int(store.add(f"worlds/{start}", 1)) - 1) // size
    return f"world{start}.{before}"


def address_seen_by_ranks(store: dist.Store) -> str:
    """An address of this machine that every rank can reach: the one that reaches the store."""
    innermost = store
    while isinstance(innermost, dist.PrefixStore):
        innermost = innermost.underlying_store
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
