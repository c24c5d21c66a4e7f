# SPDX-License-Identifier: Apache-2.0
"""What tests of more than one folder share; what each folder uses for all its tests, it says."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import pytest
import torch
import warm_python


@pytest.fixture
def strict_on_device_0() -> Iterator[None]:
    """Strict mode, device 0, a known seed."""
    pytest.importorskip("torchtpu_eager", reason="ops need an execution mode")
    torch.tpu.init()
    torch.tpu.set_eager_mode("strict")
    torch.tpu.set_device(0)
    torch.manual_seed(0)
    yield
    torch.tpu.set_device(0)


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_python() -> Run:
    """Runs a program text in a process of its own and returns what it printed."""
    return _runner(warm_python.run)


@pytest.fixture
def fresh_python() -> Run:
    """The same in a new interpreter, for tests of what is imported when."""
    return _runner(functools.partial(subprocess.run, capture_output=True, text=True))


def _runner(start: Run) -> Run:
    def run(
        code: str, *flags: str, check: bool = True, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        command = [sys.executable, *flags, "-c", textwrap.dedent(code)]
        done = start(command, timeout=120, env=variables)
        if check and done.returncode != 0:
            raise AssertionError(f"exit code {done.returncode}:\n{done.stderr}")
        return done

    return run
