# SPDX-License-Identifier: Apache-2.0
"""What tests of more than one folder share; what each folder uses for all its tests, it says."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import pytest
import torch


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


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a program text in a fresh interpreter and returns what it printed."""

    def run(
        code: str, *flags: str, check: bool = True, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        done = subprocess.run(
            [sys.executable, *flags, "-c", textwrap.dedent(code)],
            capture_output=True,
            text=True,
            timeout=120,
            env=variables,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"exit code {done.returncode}:\n{done.stderr}")
        return done

    return run
