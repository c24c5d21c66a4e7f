# SPDX-License-Identifier: Apache-2.0
"""The control plane: PyTorch's store, and how ranks that share one find each other."""

from __future__ import annotations

import socket

from torch import distributed as dist


def generation(store: dist.Store, size: int) -> int:
    """How many worlds of this store came before: a torchrun store outlives a process group."""
    return (int(store.add("worlds", 1)) - 1) // size


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
