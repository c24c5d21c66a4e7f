# SPDX-License-Identifier: Apache-2.0
"""What a script does with its process: runs as ``__main__``, ends it, starts ranks, never ends.

A plan runs it in its own process, so an end is an exception, ranks that the script would start
are the one that is recorded, and an endless loop is stopped by a clock. The clock rings in the main
thread only, and not where the system has no interval timer.
"""

from __future__ import annotations

import builtins
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch

from torchtpu_core.errors import PlanError
from torchtpu_core.plan.environment_ranks import compiled
from torchtpu_core.plan.ranks import Branches, Rank
from torchtpu_core.plan.records import Recording
from torchtpu_core.plan.user_lines import UserLines

#: Seconds between two looks at the clock.
TICK_S = 30.0


class Ended(BaseException):
    """The script ended its process by ``os._exit``."""


class TooLong(BaseException):
    """The script ran longer than allowed; no handler of the script's catches it."""


def run_as_main(script: Path) -> None:
    """Runs a script as Python runs its main file."""
    module = ModuleType("__main__")
    module.__dict__.update(__file__=str(script), __builtins__=builtins, __cached__=None)
    code = compiled(script.read_bytes(), str(script))
    before = sys.modules["__main__"]
    sys.modules["__main__"] = module
    try:
        exec(code, module.__dict__)
    finally:
        sys.modules["__main__"] = before


def exits_as_exceptions() -> Any:
    """``os._exit`` raises `Ended`, but in processes that the script forks."""
    really, me = os._exit, os.getpid()

    def _exit(status: int) -> None:
        if os.getpid() != me:
            really(status)
        raise Ended(status)

    return mock.patch.object(os, "_exit", _exit)


def spawned_ranks_in_process(recording: Recording, branches: Branches | None) -> Any:
    """``torch.multiprocessing.spawn`` calls its function here, as the rank that is recorded."""

    def spawn(fn: Callable[..., Any], args: Any = (), nprocs: int = 1, *_: Any, **__: Any) -> None:
        world, local = recording.world_size, int(os.environ["LOCAL_WORLD_SIZE"])
        if nprocs not in (world, local):
            raise PlanError(
                f"the script spawns {nprocs} ranks and the target has {world} devices, {local} of "
                f"them on a host. Spawn torch.tpu.device_count() ranks, or plan for a target of "
                f"{nprocs} devices."
            )
        if nprocs != world:
            recording.notes.append(
                f"the {nprocs} ranks that the script spawns are those of one host; the process "
                f"group has all {world}"
            )
        everyone = np.arange(world) % nprocs
        mine = recording.rank % nprocs
        fn(Rank.of(mine, everyone, branches) if branches else mine, *args)

    return mock.patch.object(torch.multiprocessing, "spawn", spawn)


class _Done:
    """What a process that ran in the plan's own says of itself."""

    returncode = 0
    pid = 0

    def poll(self, *_: Any) -> int:
        """Ended well."""
        return 0

    wait = poll

    def close(self) -> None:
        """Holds nothing."""


@contextlib.contextmanager
def started_processes(recording: Recording, branches: Branches | None) -> Iterator[None]:
    """``Process(target=train, args=(rank, ...))`` is called here for the rank that is recorded.

    A process is taken for a rank if it is given the number of those that were started before it
    with the same target, and nothing to exchange messages by. Others run for real, with a note,
    and end with the plan.
    """
    really = BaseProcess.start
    counts: dict[Any, int] = {}
    mine, local = recording.rank, int(os.environ["LOCAL_WORLD_SIZE"])

    def start(self: Any) -> None:
        target, given = self._target, [*self._args, *self._kwargs.values()]
        index = counts.get(target, 0)
        numbers = [value for value in given if isinstance(value, int) and value is not True]
        if target is None or index not in numbers or not all(map(_is_plain, given)):
            name = getattr(target, "__qualname__", type(self).__name__)
            note = f"the script starts a process ({name}), which runs for real: it is not planned"
            if note not in recording.notes:
                recording.notes.append(note)
            really(self)
            return
        counts[target] = index + 1
        self._popen = _Done()
        together = recording.world_size if recording.world_size in numbers else local
        if index == mine % together:
            everyone = np.arange(recording.world_size) % together
            rank = Rank.of(index, everyone, branches) if branches else index
            args = [rank if value is numbers[numbers.index(index)] else value for value in given]
            positional = len(self._args)
            named = dict(zip(self._kwargs, args[positional:], strict=True))
            target(*args[:positional], **named)

    before = set(multiprocessing.active_children())
    try:
        with mock.patch.object(BaseProcess, "start", start):
            yield
    finally:
        for process in set(multiprocessing.active_children()) - before:
            process.kill()


def _is_plain(value: Any) -> bool:
    """Whether a process gets it by value: a queue, a lock or a connection it shares."""
    return not type(value).__module__.startswith("multiprocessing")


@contextlib.contextmanager
def clock(limit_s: float, say: Callable[[float, str], None] | None) -> Iterator[None]:
    """Stops what runs longer than allowed.

    Args:
        limit_s: seconds, 0 for no limit.
        say: is told the seconds so far and the line that runs, now and then.

    Raises:
        TooLong: with the line that ran.
    """
    if not limit_s or threading.current_thread() is not threading.main_thread():
        yield
        return
    start, lines = time.monotonic(), UserLines()
    runs = True

    def ring(_: int, frame: FrameType | None) -> None:
        if not runs:
            return
        passed = time.monotonic() - start
        line = lines.of_frame(frame)
        if passed >= limit_s:
            raise TooLong(line)
        if say is not None:
            say(passed, line)

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, min(TICK_S, limit_s), min(TICK_S, limit_s))
    try:
        try:
            yield
        finally:
            runs = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
