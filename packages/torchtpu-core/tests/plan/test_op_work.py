# SPDX-License-Identifier: Apache-2.0
"""What operators move: rows that are looked up, not the tables they are in."""

from __future__ import annotations

import pytest
import torch
from torchtpu_core.plan.op_work import touched_bytes

ROWS, WIDTH, LOOKED_UP = 1000, 16, 8
TABLE = torch.empty(ROWS, WIDTH)
PLACES = torch.zeros(LOOKED_UP, dtype=torch.int64)
FOUND = torch.empty(LOOKED_UP, WIDTH)
MASK = torch.empty(ROWS, WIDTH, dtype=torch.bool)
TWO_BAGS = torch.empty(2, WIDTH)


def _touched(name: str, operands: list[torch.Tensor], results: list[torch.Tensor]):
    read, written = ([t.nbytes for t in tensors] for tensors in (operands, results))
    return touched_bytes(name, operands, read, written)


@pytest.mark.parametrize(
    ("name", "operands", "results", "read", "written"),
    [
        ("embedding", [TABLE, PLACES], [FOUND], 512, 512),
        ("index_select", [TABLE, PLACES], [FOUND], 512, 512),
        # Each of the eight rows is read, though the results are two sums.
        ("_embedding_bag", [TABLE, PLACES, PLACES[:2]], [TWO_BAGS], 512, 128),
        ("index_add_", [TABLE, PLACES, FOUND], [TABLE], 512, 512),
        ("index_put_", [TABLE, MASK, FOUND], [TABLE], 64000, 64000),
        ("index_add", [TABLE, PLACES, FOUND], [TABLE], 64000, 64000),
        ("mul", [TABLE, FOUND], [TABLE], 64000, 64000),
    ],
)
def test_rows_looked_up_or_changed_in_place_are_moved_and_not_their_table(
    name, operands, results, read, written
) -> None:
    reads, writes = _touched(name, operands, results)
    assert (reads[0], sum(writes)) == (read, written)
    assert list(reads[1:]) == [t.nbytes for t in operands[1:]]


LOOK_UP = """
import torch

table = torch.nn.Embedding(ROWS, 256, device="tpu")
with torch.no_grad():
    table(torch.zeros(4096, dtype=torch.int64, device="tpu"))
"""


def test_look_up_in_a_larger_table_costs_the_same(planned) -> None:
    small, large = (planned(LOOK_UP.replace("ROWS", rows)) for rows in ("65536", "1048576"))
    times = [plan["seconds_by_work"]["forward: move"] for plan in (small, large)]
    assert times[0] == pytest.approx(times[1], rel=1e-6)
