# SPDX-License-Identifier: Apache-2.0
"""What is said of a store whose host is silent: whether the host or the network is to blame."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from torch import distributed as dist
from torchtpu_distributed import lost_store, processes
from torchtpu_distributed.errors import CollectiveError, CollectiveTimeoutError
from torchtpu_distributed.processes import Process
from torchtpu_distributed.stores import Answering

PATIENCE_S = 0.5


class Wire:
    """The network between clients and a server; it can be cut, and then says nothing.

    Args:
        port: where the server listens on this machine.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._is_cut = threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Carry nothing any more, but leave the connections open."""
        self._is_cut.set()

    def close(self) -> None:
        """Accept no connection any more."""
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._port))
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=[source, target], daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                if self._is_cut.is_set():
                    continue
                target.sendall(data)
        except OSError:
            return


@pytest.fixture
def silent() -> Iterator[tuple[Answering, Exception]]:
    """A connection to a store whose network has been cut, and what a call of it then raised."""
    server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    wire = Wire(server.port)
    client = dist.TCPStore("127.0.0.1", wire.port, None, False, timeout=timedelta(seconds=20))
    store = Answering(client, lambda began_s: time.monotonic() - began_s > PATIENCE_S)
    store.set("key", "value")
    assert store.get("key") == b"value"
    wire.cut()
    with pytest.raises(dist.DistNetworkError, match="silent for") as raised:
        store.get("key")
    yield store, raised.value
    wire.close()


@pytest.fixture
def process() -> Iterator[Callable[[int], Process]]:
    """Makes a process that waits, as that of a rank; it can be stopped."""
    started = []

    def make(rank: int) -> Process:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        started.append(child)
        mine = processes.this_process(rank, "")
        state = processes._state(child.pid)
        assert state is not None
        return Process(rank=rank, host=mine.host, hostname="far", pid=child.pid, started=state[1])

    yield make
    for child in started:
        child.kill()
        child.communicate()


def stop(process: Process) -> None:
    """Stop a process, and wait until it is."""
    os.kill(process.pid, signal.SIGSTOP)
    while not processes.is_stopped(process):
        time.sleep(0.01)


def test_stopped_rank_that_hosts_the_silent_store_is_the_cause(silent, process, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    store, error = silent
    peers = {rank: process(rank) for rank in (0, 2)} | {1: processes.this_process(1, "")}
    stop(peers[0])
    stop(peers[2])
    kind, what, advice = lost_store.verdict(store, error, peers, [], "")
    assert kind is CollectiveTimeoutError
    assert what.startswith(f"rank 0 (process {peers[0].pid} on far) is stopped (SIGSTOP")
    assert "does not answer (DistNetworkError: silent for" in what
    assert "which is in its process. Besides, rank 2" in what
    assert advice.startswith("Continue or end it")


@pytest.mark.parametrize("is_hosted_by_launcher", [True, False])
def test_silent_store_elsewhere_is_not_blamed_on_a_stopped_rank(
    silent, process, monkeypatch, is_hosted_by_launcher
):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", str(is_hosted_by_launcher))
    store, error = silent
    peers = {0: process(0), 1: processes.this_process(1, ""), 2: process(2)}
    idle = 0 if is_hosted_by_launcher else 2
    stop(peers[idle])
    kind, what, _ = lost_store.verdict(store, error, peers, [], "")
    assert kind is CollectiveError
    assert "rank 0 or the launcher, is stopped, or the network to it is cut." in what
    assert f"Besides, rank {idle} (process" in what


def test_rank_whose_store_is_in_a_stopped_rank_names_that(run_scripts):
    stopped, survivor = run_scripts("silent_host.py", timeout_s=60)
    assert stopped.returncode == -signal.SIGKILL
    assert survivor.returncode in (1, 3), survivor.stderr
    assert "ERROR CollectiveTimeoutError: rank 0 (process" in survivor.stdout
    assert "is stopped (SIGSTOP, or a debugger), and the store" in survivor.stdout
    assert "which is in its process" in survivor.stdout
    assert "all_reduce" in survivor.stdout and "silent_host.py:" in survivor.stdout
