# SPDX-License-Identifier: Apache-2.0
"""Which values get the room in VMEM, by how many operators make or read them."""

from __future__ import annotations

import pytest
from torchtpu_core.ici.slices import parse_slice
from torchtpu_core.plan import making
from torchtpu_core.plan.vmem import Life, Vmem, in_hbm
from torchtpu_core.testing.recordings import MIB

SCORES, PRODUCT, OPERAND = 1, 2, 3


def test_scores_that_the_gradient_reads_again_stay_rather_than_the_product_beside_them() -> None:
    # As of 1,024 tokens in bfloat16: 64 MiB each on a chip of 112 MiB of room.
    scores = Life(SCORES, 64 * MIB, (0, 1, 20, 22), 23)
    product = Life(PRODUCT, 64 * MIB, (21, 22), 23)
    assert in_hbm([scores, product], [], Vmem(112 * MIB)) == [product]
    assert in_hbm([product, scores], [], Vmem(112 * MIB)) == [product]


def test_value_made_first_stays_of_values_with_as_many_uses() -> None:
    long, short = Life(SCORES, 64 * MIB, (0, 9), 10), Life(PRODUCT, 64 * MIB, (5, 7), 8)
    for lives in ([long, short], [short, long]):
        assert in_hbm(lives, [], Vmem(112 * MIB)) == [short]


def test_all_waits_of_a_value_come_before_those_of_one_with_fewer_uses() -> None:
    # The second wait of the scores is long; that of the product, which is shorter, comes later.
    scores, product = Life(SCORES, 64 * MIB, (0, 1, 20), 21), Life(PRODUCT, 64 * MIB, (10, 11), 12)
    assert in_hbm([product, scores], [], Vmem(112 * MIB)) == [product]


@pytest.mark.parametrize(("room", "out"), [(64, 0), (63, 1)])
def test_operand_of_the_step_takes_no_room_that_a_value_wants(room, out) -> None:
    value = Life(SCORES, 64 * MIB, (0, 9), 10)
    operand = Life(OPERAND, 64 * MIB, (4, 5), 6)
    assert len(in_hbm([value], [operand], Vmem(room * MIB))) == out


@pytest.mark.parametrize(
    ("target", "room"), [("v4:2x2x1", 128), ("v5e:1x1", 112), ("v5p:2x2x1", 48), ("v6e:1x1", 96)]
)
def test_room_is_that_of_common_memory_or_of_one_core(target, room) -> None:
    _, found = making._fast_memory(parse_slice(target).chip)
    assert found == room * MIB
