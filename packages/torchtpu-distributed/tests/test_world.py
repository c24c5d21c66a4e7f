# SPDX-License-Identifier: Apache-2.0
"""The beginning of a world: ranks that do not come are named."""

from __future__ import annotations

import pytest
from torch import distributed as dist
from torchtpu_distributed import world
from torchtpu_distributed.errors import PeerLostError
from torchtpu_distributed.processes import this_process


def test_ranks_that_do_not_come_are_named():
    store = dist.HashStore()
    store.set("who/2", this_process(2, "").encode())
    with pytest.raises(PeerLostError, match=r"rank\(s\) 1, 3 of 4 did not come .* in 0.2 s"):
        world.introduce(store, 0, 4, 0.2)


def test_ranks_that_come_are_known():
    store = dist.HashStore()
    store.set("who/1", this_process(1, "").encode())
    found = world.introduce(store, 0, 2, 5.0)
    assert [process.rank for process in found.values()] == [0, 1]
