# SPDX-License-Identifier: Apache-2.0
"""The helper process that hosts the key-value service of XLA's CPU collectives.

XLA aborts every process that loses this service, so it must not die with rank 0: then
no rank could say which one is missing. It runs apart, and ends when the last rank has
closed the connection it keeps open for this purpose; rank 0 has one from the start.
PyTorch's store stays the control plane; this service only introduces XLA's communicators to
each other.

Imports neither torch nor JAX, only jaxlib.
"""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO

from torchtpu_distributed.processes import LOOPBACK

#: Our own watch finds lost ranks; XLA's must never be first.
HEARTBEAT_TIMEOUT_S = 10**7
#: The end of the pipe that rank 0 holds open as long as it lives.
_held: list[IO[str]] = []


def start(host: str, size: int) -> tuple[str, str]:
    """Start the helper for `size` ranks; (service, lifeline) addresses with ports.

    Args:
        host: an address of this machine that all ranks can reach.
        size: number of ranks.
    """
    helper = subprocess.Popen(
        [sys.executable, "-m", "torchtpu_distributed.coordinator", host, str(size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
        env={"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ},
    )
    assert helper.stdin is not None and helper.stdout is not None
    _held.append(helper.stdin)
    ports = helper.stdout.readline().split()
    helper.stdout.close()
    if len(ports) != 2:
        raise RuntimeError(
            f"the helper process of the collectives ended with code {helper.wait()} before it "
            "was ready; its output above says why."
        )
    written = f"[{host}]" if ":" in host else host
    return f"{written}:{ports[0]}", f"{written}:{ports[1]}"


def connect_lifeline(address: str) -> socket.socket:
    """A connection that keeps the helper alive while it is open."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=60)


def main(host: str, size: int) -> None:
    """Run the helper: print two ports, then serve until every rank has gone."""
    from jaxlib import _jax

    bind = host if host.startswith(LOOPBACK) else ""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    lifeline = socket.create_server((bind, 0), family=family)
    port = _free_port(bind, family)
    served = bind if family is socket.AF_INET and bind else f"[{bind or '::'}]"
    service = _jax.get_distributed_runtime_service(
        f"{served}:{port}", size, heartbeat_timeout=HEARTBEAT_TIMEOUT_S
    )
    print(port, lifeline.getsockname()[1], flush=True)
    _let_go_of_outputs()
    wait_until_deserted(lifeline, sys.stdin.fileno())
    del service
    os._exit(0)  # destroying the service would wait for ranks that are gone


def _let_go_of_outputs() -> None:
    """Whoever reads rank 0's output must see its end when rank 0 ends, not when this process does.

    This one lives as long as any rank, and one that is stopped never ends.
    """
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
        os.dup2(nowhere.fileno(), sys.stderr.fileno())


def wait_until_deserted(lifeline: socket.socket, starter: int) -> None:
    """Return when all connections have closed, and the pipe of the process that started this one.

    Args:
        lifeline: where ranks connect.
        starter: descriptor of the pipe.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(lifeline, selectors.EVENT_READ)
        selector.register(starter, selectors.EVENT_READ)
        while len(selector.get_map()) > 1:
            for key, _ in selector.select():
                connection = key.fileobj
                if connection is lifeline:
                    accepted, _address = lifeline.accept()
                    selector.register(accepted, selectors.EVENT_READ)
                elif not _still_open(key.fd):
                    selector.unregister(connection)
                    if isinstance(connection, socket.socket):
                        connection.close()


def _still_open(descriptor: int) -> bool:
    try:
        return bool(os.read(descriptor, 64))
    except OSError:
        return False


def _free_port(bind: str, family: socket.AddressFamily) -> int:
    with socket.create_server((bind, 0), family=family) as probe:
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
