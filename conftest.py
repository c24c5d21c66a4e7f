# SPDX-License-Identifier: Apache-2.0
"""Every run of the tests starts with an empty cache of programs, in a directory of its own.

What a test counts (compilations, hits) and sees (hooks, logs) must not depend on an earlier run.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

_CACHE = tempfile.mkdtemp(prefix="torchtpu-tests-")
os.environ["TORCH_TPU_CACHE_DIR"] = _CACHE


@pytest.fixture(scope="session", autouse=True)
def _cache_of_this_run() -> Iterator[None]:
    yield
    shutil.rmtree(_CACHE, ignore_errors=True)
