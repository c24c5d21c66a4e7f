# SPDX-License-Identifier: Apache-2.0
"""Every run of the tests starts with an empty cache of programs, in a directory of its own.

What a test counts (compilations, hits) and sees (hooks, logs) must not depend on an earlier run.
The processes of one run share the directory, so that each program is compiled once between them.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).with_name("tools")))  # for `warm_python`

_IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
if not _IS_WORKER:
    os.environ["TORCH_TPU_CACHE_DIR"] = tempfile.mkdtemp(prefix="torchtpu-tests-")
_CACHE = os.environ["TORCH_TPU_CACHE_DIR"]  # a worker has that of the run


def pytest_unconfigure() -> None:
    """Drop the cache of this run."""
    if not _IS_WORKER:
        shutil.rmtree(_CACHE, ignore_errors=True)


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is marked
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the long cases of sweeps: tools/slow_cases.py."""
    slow = set(
        Path(__file__).with_name("tools").joinpath("slow_cases.txt").read_text().splitlines()
    )
    for item in items:
        if item.nodeid in slow:
            item.add_marker(pytest.mark.slow)
