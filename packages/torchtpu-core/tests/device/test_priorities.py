# SPDX-License-Identifier: Apache-2.0
"""XLA's compiling threads give way to those that compute, and to the script."""

from __future__ import annotations

import sys

import pytest

SCRIPT = """
import os, pathlib, torch
base = os.getpriority(os.PRIO_PROCESS, 0)
nicer = min(base + 10, 19)
x = torch.ones(8, 8, device="tpu")
(x @ x).sum().item()
names = {}
for task in pathlib.Path("/proc/self/task").iterdir():
    nice = os.getpriority(os.PRIO_PROCESS, int(task.name))
    names.setdefault(nice, []).append((task / "comm").read_text().strip())
assert set(names) == {base, nicer}, names
assert "tf_XLAEigen" in names[base] and "tf_XLAEigen" not in names[nicer], names
assert os.getpriority(os.PRIO_PROCESS, os.getpid()) == base
(torch.ones(9, device="tpu") * 2).sum().item()  # no thread of the script is taken for XLA's
assert os.getpriority(os.PRIO_PROCESS, os.getpid()) == base
"""


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are Linux's")
def test_threads_that_compile_have_a_lower_priority_than_those_that_compute(run_python, tmp_path):
    run_python(SCRIPT, TORCH_TPU_CACHE_DIR=str(tmp_path))
