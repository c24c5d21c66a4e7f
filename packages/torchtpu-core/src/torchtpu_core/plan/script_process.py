# SPDX-License-Identifier: Apache-2.0
"""What a script does with its process: runs as ``__main__``, ends it, starts ranks, never ends.

A plan runs it in its own process, so an end is an exception, ranks that the script would start
are the one that is recorded, and an endless loop is stopped by a clock. The clock rings in the main
thread only, and not where the system has no interval timer.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
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

    def ring(_: int, frame: FrameType | None) -> None:
        passed = time.monotonic() - start
        line = lines.of_frame(frame)
        if passed >= limit_s:
            raise TooLong(line)
        if say is not None:
            say(passed, line)

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, min(TICK_S, limit_s), min(TICK_S, limit_s))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
