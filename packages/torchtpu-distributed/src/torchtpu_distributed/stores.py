# SPDX-License-Identifier: Apache-2.0
"""The control plane: PyTorch's store, used from several threads without waiting for each other.

One connection of a store serves one call at a time, and a blocking `get` holds it, so
each thread that talks to the store has a clone.
"""

from __future__ import annotations

import socket
from datetime import timedelta

from torch import distributed as dist

#: A blocking read returns to Python this often, to look whether the job has failed.
PATIENCE = timedelta(seconds=1)


def generation(store: dist.Store, size: int) -> int:
    """How many worlds of this store came before: a torchrun store outlives a process group."""
    return (int(store.add("worlds", 1)) - 1) // size


def clone(store: dist.Store) -> dist.Store:
    """An independent connection whose reads give up after `PATIENCE`."""
    other = store.clone()
    other.set_timeout(PATIENCE)
    return other


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
