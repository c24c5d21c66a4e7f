# SPDX-License-Identifier: Apache-2.0
"""Memory that a program freed serves the next one, unless the user set malloc up."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest
from torchtpu_core import env_vars
from torchtpu_core.runtime import host_memory

_FAULTS = """
import resource, torch
x = torch.ones(1 << 24, device="tpu")
def run():
    global y
    y = None
    y = x + 1
    torch.tpu.synchronize()
for _ in range(4):
    run()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    run()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc only")


@pytest.fixture
def _unset(monkeypatch):
    for name in (*host_memory._CHOICES, "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_unset")
def test_steps_take_no_new_pages() -> None:
    """Eight results of 64 MiB, each 16,384 pages, take less than one of them anew."""
    done = subprocess.run(
        [sys.executable, "-c", _FAULTS], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 16384


@pytest.mark.usefixtures("_unset")
@pytest.mark.parametrize(
    ("name", "value"),
    [("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"), ("MALLOC_ARENA_MAX", "2"), ("LD_PRELOAD", "x")],
)
def test_what_the_user_chose_stays(monkeypatch, name: str, value: str) -> None:
    monkeypatch.setitem(os.environ, name, value)
    assert not host_memory.keep_freed()


@pytest.mark.usefixtures("_unset")
def test_it_can_be_turned_off(monkeypatch) -> None:
    monkeypatch.setenv("TORCH_TPU_KEEP_FREED_MEMORY", "0")
    env_vars.reset()
    try:
        assert not host_memory.keep_freed()
    finally:
        monkeypatch.undo()
        env_vars.reset()
