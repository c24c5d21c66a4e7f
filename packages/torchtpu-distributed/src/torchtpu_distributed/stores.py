# SPDX-License-Identifier: Apache-2.0
"""The control plane: PyTorch's store, and how ranks that share one find each other."""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import distributed as dist

from torchtpu_distributed.errors import ProcessGroupError
from torchtpu_distributed.processes import Process, is_running, this_process

#: Pauses between two looks at keys that are not there yet.
_FIRST_NAP_S, _NAP_S = 0.001, 0.1
#: Time between two looks whether a call may still wait for the store's answer.
_LOOK_S = 0.25


class _Call:
    """A call of a store, and then its result."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function, self._arguments = function, arguments
        self._result: Any = None
        self._error: Exception | None = None
        self.over = threading.Event()

    def make(self) -> None:
        """Make it, which may last for ever."""
        try:
            self._result = self._function(*self._arguments)
        except Exception as error:
            self._error = error
        self.over.set()

    def result(self) -> Any:
        """Its result, or its error."""
        if self._error is not None:
            raise self._error
        return self._result


class _Caller:
    """The thread that makes a connection's calls; none is made after one that was given up.

    It ends when nobody has the connection any more.
    """

    def __init__(self, is_overdue: Callable[[float], bool]) -> None:
        self._is_overdue = is_overdue
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._silent = ""
        thread = threading.Thread(
            target=_make_all, args=[self._calls], name="tpu_dist_store", daemon=True
        )
        thread.start()
        weakref.finalize(self, self._calls.put, None)

    @property
    def is_silent(self) -> bool:
        """Whether a call was given up."""
        return bool(self._silent)

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._silent:
            raise dist.DistNetworkError(self._silent)
        call, began_s = _Call(function, arguments), time.monotonic()
        self._calls.put(call)
        while not call.over.wait(_LOOK_S):
            if self._is_overdue(began_s):
                self._silent = f"silent for {time.monotonic() - began_s:.0f} s"
                raise dist.DistNetworkError(self._silent)
        return call.result()


def _make_all(calls: queue.SimpleQueue[_Call | None]) -> None:
    while (call := calls.get()) is not None:
        call.make()
        del call  # with the connection


class Answering:
    """A connection to a store, whose calls end although the store's host may be silent.

    PyTorch waits without limit for an answer. A host that is stopped, or to which the network is
    cut, gives none.

    Args:
        store: the connection; nobody else uses it.
        is_overdue: whether to give up a call that began at a time, in seconds of the monotonic
            clock. After that one every call fails at once.

    All methods raise:
        DistNetworkError: the store has ended, or is silent.
    """

    def __init__(self, store: dist.Store, is_overdue: Callable[[float], bool]) -> None:
        self._store, self._caller = store, _Caller(is_overdue)

    @property
    def is_silent(self) -> bool:
        """Whether a call was given up, where others fail because the connection has ended."""
        return self._caller.is_silent

    def prefixed(self, prefix: str) -> Answering:
        """The part of it whose keys begin with a prefix."""
        part = object.__new__(Answering)
        part._store, part._caller = dist.PrefixStore(prefix, self._store), self._caller
        return part

    def set(self, key: str, value: str) -> None:
        """Give a key a value."""
        self._caller(self._store.set, key, value)

    def get(self, key: str) -> bytes:
        """The value of a key that is there."""
        value: bytes = self._caller(self._store.get, key)
        return value

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        """Give a key a value if it has the expected one, or none; its value then."""
        now: bytes = self._caller(self._store.compare_set, key, expected, value)
        return now

    def add(self, key: str, amount: int) -> int:
        """Count a key up; its new value."""
        return int(self._caller(self._store.add, key, amount))

    def append(self, key: str, value: str) -> None:
        """Lengthen the value of a key."""
        self._caller(self._store.append, key, value)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there."""
        return bool(self._caller(self._store.check, list(keys)))

    def delete_key(self, key: str) -> bool:
        """Remove a key; whether it was there."""
        return bool(self._caller(self._store.delete_key, key))


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


def claim(store: Answering, rank: int) -> None:
    """Say that this process is a rank, before it counts itself among those of a world.

    A process may become the rank of one that has ended, and, if it was a rank before, of any.

    Raises:
        ProcessGroupError: another process of this machine is that rank, and still runs.
    """
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    key, own = f"ranks/{start}/{rank}", this_process(rank, "")
    is_new = store.add(f"claims/{start}/{own.host}/{own.pid}/{own.started}", 1) == 1
    holder = Process.decode(store.compare_set(key, "", own.encode()))
    if holder == own:
        return
    if is_new and is_running(holder):
        raise ProcessGroupError(
            f"rank {rank} has been started twice: {holder.name} still runs, and this is process "
            f"{own.pid}. Give each process a rank of its own (RANK, or the argument rank of "
            "init_process_group()), and end what is left of an earlier job."
        )
    store.set(key, own.encode())


def generation(store: Answering, size: int) -> str:
    """A name for this world that no earlier one of the same store has.

    A store of torchrun outlives process groups, and may outlive a restart of the ranks, of which
    some may have ended before they counted themselves: each start counts anew.
    """
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    before = (int(store.add(f"worlds/{start}", 1)) - 1) // size
    return f"world{start}.{before}"


def wait(store: Answering, keys: Sequence[str], timeout_s: float) -> bool:
    """Wait for keys, and hear Ctrl-C, which the store's own wait does not; whether they came."""
    deadline, nap_s = time.monotonic() + timeout_s, _FIRST_NAP_S
    while not store.check(list(keys)):
        if time.monotonic() > deadline:
            return False
        time.sleep(nap_s)
        nap_s = min(1.5 * nap_s, _NAP_S)
    return True


def route(store: Answering) -> tuple[str, str]:
    """The address of this machine that reaches the store, and that of the store.

    Empty if no network leads to it: a file, or memory.
    """
    innermost = _innermost(store)
    if not isinstance(innermost, dist.TCPStore):
        return "", ""
    try:
        family, kind, _, _, target = socket.getaddrinfo(
            innermost.host, innermost.port, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0]), str(target[0])
    except OSError:
        return "", ""


def is_hosted_by(store: dist.Store | Answering, rank: int) -> bool:
    """Whether a rank's process is probably the server of the store, which ends with it."""
    by_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return rank == 0 and not by_launcher and isinstance(_innermost(store), dist.TCPStore)


def _innermost(store: dist.Store | Answering) -> dist.Store:
    if isinstance(store, Answering):
        store = store._store
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store
