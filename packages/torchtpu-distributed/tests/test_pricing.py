# SPDX-License-Identifier: Apache-2.0
"""Simulated time of collectives follows the place of a group's ranks on the torus."""

from __future__ import annotations

import os
import sys

import pytest
import warm_python

SCRIPT = """
from types import SimpleNamespace
from torchtpu_distributed.pricing import device_time_ps
def price(*ranks, kind="all_reduce", pairs=()):
    group = SimpleNamespace(ranks=ranks, size=len(ranks), world=SimpleNamespace(size=16))
    return device_time_ps(kind, 1 << 24, group, pairs)
print(price(0, 1), price(0, 2), price(0, 1, 2, 3), price(0, 4, 8, 12), price(*range(16)),
      price(0, 1, kind="send", pairs=((0, 1),)), price(0, 10, kind="send", pairs=((0, 1),)))
"""


def prices(target: str) -> list[int]:
    environment = {**os.environ, "TORCH_TPU_TARGET": target}
    done = warm_python.run([sys.executable, "-c", SCRIPT], env=environment)
    return [int(word) for word in done.stdout.split()]


def test_time_of_a_collective_follows_the_ranks_on_the_torus():
    near, far, row, column, everybody, neighbours, apart = prices("v5e:4x4")
    wire = (1 << 24) / 45e9 * 1e12  # 16 MiB over one link of v5e, which has 45 GB/s each way
    hop = neighbours - wire
    assert 0 < hop < 0.01 * wire
    assert apart == pytest.approx(wire + 4 * hop)
    # An all-reduce on a ring takes 2 (n - 1) steps, each with 1/n of the bytes.
    assert near == pytest.approx(wire + 2 * hop)
    assert far == pytest.approx(2 * wire + 4 * hop)  # its messages meet on the links between
    assert row == column == pytest.approx(1.5 * wire + 6 * hop)
    assert 0 < everybody < row  # over two axes of links


def test_collective_without_a_chip_model_takes_no_simulated_time():
    assert prices("cpu") == [0] * 7
