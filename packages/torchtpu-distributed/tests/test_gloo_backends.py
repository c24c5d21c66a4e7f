# SPDX-License-Identifier: Apache-2.0
"""Backends of gloo share what listens, but not with the process that they were forked from."""

from __future__ import annotations

import os
import sys

import warm_python

FORKED = """
import os, sys
import torch
from torch import distributed as dist
from torchtpu_distributed import gloo_backends

# Has a thread that its children lack.
gloo_backends.backend(dist.HashStore(), 0, 1, "127.0.0.1", 10.0)
children = []
for rank in range(2):
    child = os.fork()
    if child == 0:
        store, total = dist.FileStore(sys.argv[1], 2), torch.ones(3)
        stores = [dist.PrefixStore(name, store) for name in "ab"]
        for group in [gloo_backends.backend(each, rank, 2, "127.0.0.1", 10.0) for each in stores]:
            group.allreduce([total]).wait()
        os._exit(int(total.sum()))
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""


def test_groups_of_forked_processes_share_what_is_their_own(tmp_path) -> None:
    command = [sys.executable, "-c", FORKED, str(tmp_path / "store")]
    lazy = {**os.environ, "TORCH_GLOO_LAZY_INIT": "1"}  # connecting later, they would wait for ever
    done = warm_python.run(command, timeout=60, env=lazy)
    assert done.stdout == "[12, 12]\n", done.stderr
