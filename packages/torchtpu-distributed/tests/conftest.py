# SPDX-License-Identifier: Apache-2.0
"""Ranks for the tests: processes that join a process group and run jobs (folder `jobs`)."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Listener, wait
from pathlib import Path
from typing import Any

import pytest
import warm_python

JOBS = Path(__file__).parent / "jobs"
sys.path.insert(0, str(JOBS))

from messages import receive, send  # noqa: E402 - in the folder of the jobs, which use it too


def rank_environment(rank: int, size: int, port: int, **extra: str) -> dict[str, str]:
    """What torchrun would set, for one rank."""
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "TORCH_TPU_CACHE_DIR": "",
        "TORCH_TPU_TARGET": "v5e:2x2",
        **extra,
    }


def free_port() -> int:
    """A port nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class Ranks:
    """A process group of worker processes, which a job that fails leaves to new ones."""

    def __init__(self, size: int, **extra: str) -> None:
        self.size, self._extra = size, extra
        self._start()

    def _start(self) -> None:
        path = os.pathsep.join(filter(None, [str(JOBS), os.environ.get("PYTHONPATH", "")]))
        key = secrets.token_bytes(16)
        port = free_port()
        with Listener(("127.0.0.1", 0), authkey=key) as listener:
            address = listener.address
            self._processes = [
                warm_python.Popen(
                    [sys.executable, "-c", _RUN, str(address), key.hex()],
                    env=rank_environment(rank, self.size, port, PYTHONPATH=path, **self._extra),
                )
                for rank in range(self.size)
            ]
            by_rank = {}
            for _ in range(self.size):
                connection = listener.accept()
                by_rank[receive(connection)] = connection
        self._connections = [by_rank[rank] for rank in range(self.size)]

    def __call__(self, job: str, *args: Any, each: Sequence[Any] | None = None) -> list[Any]:
        """Run a job on all ranks; the result of each.

        Args:
            job: ``module.function``.
            args: the same for all ranks.
            each: one more argument per rank.
        """
        for rank, connection in enumerate(self._connections):
            send(connection, (job, args if each is None else (*args, each[rank])))
        answers = self._answers()
        if any(answer is None or not answer[0] for answer in answers):
            self._start_anew()
        for rank, answer in sorted(enumerate(answers), key=lambda pair: pair[1] is None):
            assert answer is not None, f"rank {rank}: no answer; where it was is on stderr"
            assert answer[0], f"rank {rank}:\n{answer[1]}"
        return [answer[1] for answer in answers if answer]

    def _answers(self) -> list[tuple[bool, Any] | None]:
        """What each rank answers; None of one that is late, or a while after another failed."""
        answers: list[tuple[bool, Any] | None] = [None] * self.size
        waited_for = dict(zip(self._connections, range(self.size), strict=True))
        until = time.monotonic() + _JOB_S
        while waited_for and (left := until - time.monotonic()) > 0:
            for connection in wait(list(waited_for), left):
                rank = waited_for.pop(connection)
                try:
                    answer = receive(connection)
                except (EOFError, OSError) as error:
                    answer = (False, f"the process ended: {error!r}")
                answers[rank] = answer
                if not answer[0]:
                    until = min(until, time.monotonic() + _AFTER_FAILURE_S)
        return answers

    def _start_anew(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGUSR1)  # says on stderr where its threads are
        time.sleep(1)
        for process, connection in zip(self._processes, self._connections, strict=True):
            connection.close()
            process.kill()
            process.wait()
        self._start()

    def close(self) -> list[int]:
        """End the workers; their exit codes."""
        for connection in self._connections:
            connection.close()
        return [process.wait(timeout=60) for process in self._processes]


#: A job is given up then, before pytest's own limit; and its other ranks after one has failed.
_JOB_S = 240.0
_AFTER_FAILURE_S = 20.0
_RUN = "import ast, sys, worker; worker.main(ast.literal_eval(sys.argv[1]), sys.argv[2])"


@pytest.fixture(scope="session")
def pair() -> Iterator[Ranks]:
    """Two ranks whose device became distributed with the process group, made without a name."""
    ranks = Ranks(2)
    yield ranks
    assert ranks.close() == [0, 0]


@pytest.fixture(scope="session")
def late_pair() -> Iterator[Ranks]:
    """Two ranks that had used the device before they made the process group."""
    ranks = Ranks(2, START_FIRST="1", BACKEND="tpu")
    yield ranks
    assert ranks.close() == [0, 0]


@pytest.fixture(scope="session")
def xla_pair() -> Iterator[Ranks]:
    """Two ranks whose collectives are XLA's programs, as on TPUs."""
    ranks = Ranks(2, TORCH_TPU_COLLECTIVES="xla")
    yield ranks
    assert ranks.close() == [0, 0]


@pytest.fixture(scope="session")
def late_xla_pair() -> Iterator[Ranks]:
    """The same, where the device had been used before: collectives get a second client."""
    ranks = Ranks(2, START_FIRST="1", TORCH_TPU_COLLECTIVES="xla")
    yield ranks
    assert ranks.close() == [0, 0]


@pytest.fixture(scope="session")
def four() -> Iterator[Ranks]:
    """Four ranks, with gloo named for CPU tensors."""
    ranks = Ranks(4, BACKEND="cpu:gloo,tpu:tpu_dist")
    yield ranks
    assert ranks.close() == [0, 0, 0, 0]


@pytest.fixture
def start_scripts() -> Callable[..., list[subprocess.Popen[str]]]:
    """Starts a script of the folder `jobs` as all ranks of a new process group."""

    def start(
        script: str, *args: str, size: int = 2, environment: Mapping[str, str] | None = None
    ) -> list[subprocess.Popen[str]]:
        port = free_port()
        return [
            warm_python.Popen(
                [sys.executable, str(JOBS / script), *args],
                env=rank_environment(rank, size, port, **(environment or {})),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]

    return start


@pytest.fixture
def run_scripts(start_scripts) -> Callable[..., list[subprocess.CompletedProcess[str]]]:
    """Runs a script of the folder `jobs` as all ranks of a new process group."""

    def run(
        script: str,
        *args: str,
        size: int = 2,
        timeout_s: float = 120,
        kill_after: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Outcomes by rank; rank `kill_after` is killed when the ranks before it have ended."""
        processes = start_scripts(script, *args, size=size, environment=environment)
        outcomes = []
        for rank, process in enumerate(processes):
            if rank == kill_after:
                process.kill()
            out, err = process.communicate(timeout=timeout_s)
            outcomes.append(subprocess.CompletedProcess(args, process.returncode, out, err))
        return outcomes

    return run
