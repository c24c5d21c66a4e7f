# SPDX-License-Identifier: Apache-2.0
"""Backends of gloo share what listens, but not with the process that they were forked from."""

from __future__ import annotations

import sys

import warm_python

FORKED = """
import os, sys
import torch
from torch import distributed as dist
from torchtpu_distributed import gloo_backends

gloo_backends.backend(dist.HashStore(), 0, 1, 10.0)  # has a thread that its children lack
children = []
for rank in range(2):
    child = os.fork()
    if child == 0:
        group = gloo_backends.backend(dist.FileStore(sys.argv[1], 2), rank, 2, 10.0)
        total = torch.ones(3)
        group.allreduce([total]).wait()
        os._exit(int(total.sum()))
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""


def test_forked_processes_listen_for_themselves(tmp_path) -> None:
    done = warm_python.run([sys.executable, "-c", FORKED, str(tmp_path / "store")], timeout=60)
    assert done.stdout == "[6, 6]\n", done.stderr
