# SPDX-License-Identifier: Apache-2.0
"""All-to-alls of a plan: whose parts are whose, what they cost, and what counts tell of them."""

from __future__ import annotations

import numpy as np
import pytest
from torchtpu_core.errors import PlanError
from torchtpu_core.ici.model import network_model
from torchtpu_core.ici.network import Network
from torchtpu_core.ici.slices import parse_slice
from torchtpu_core.plan import uneven
from torchtpu_core.plan.collectives import parts_of, put_in_bytes
from torchtpu_core.plan.making import make_plan
from torchtpu_core.plan.records import Work
from torchtpu_core.simulator import calibration as cal
from torchtpu_core.testing.recordings import MIB, op, recording

WHERE = parse_slice("v5e:2x2")
GROUP = (0, 1, 2, 3)


def _step(rank: int, ranks: tuple[int, ...], sent, received):
    more = {"collective": "all_to_all", "group": GROUP, "moved_bytes": sum(sent)}
    exchange = op("alltoall_base_", Work.COLLECTIVE, (1,), (2,), **more)
    exchange.sent, exchange.received = tuple(sent), tuple(received)
    made = recording([exchange, op("add", Work.ELEMENTWISE, (2,), (3,))], {})
    made.world_size, made.rank, made.ranks = 4, rank, ranks
    made.blocks[1] = made.blocks[2]
    return made


def _parts(*steps) -> np.ndarray:
    uneven.complete(steps)
    return steps[0].ops[0].parts.sizes


def test_one_rank_stands_for_all_that_send_the_same() -> None:
    sizes = _parts(_step(0, GROUP, [4, 2, 2, 2], [4] * 4))
    np.testing.assert_array_equal(sizes, np.tile([4, 2, 2, 2], (4, 1)))


def test_recorded_ranks_send_their_own_rows() -> None:
    first = _step(0, (0, 1), [4, 2, 2, 2], [4, 4, 1, 1])
    last = _step(2, (2, 3), [1, 1, 3, 3], [2, 2, 3, 3])
    sizes = _parts(first, last)
    np.testing.assert_array_equal(sizes, [[4, 2, 2, 2]] * 2 + [[1, 1, 3, 3]] * 2)
    assert last.ops[0].parts is first.ops[0].parts  # priced once
    assert not any("in proportion" in note for note in first.notes)


def test_ranks_that_send_to_the_next_are_turned_by_their_distance() -> None:
    step = _step(1, GROUP, [0, 0, 6, 1], [6, 0, 0, 1])
    sizes = _parts(step)
    np.testing.assert_array_equal(sizes, [[0, 6, 1, 0], [0, 0, 6, 1], [1, 0, 0, 6], [6, 1, 0, 0]])
    assert not any("in proportion" in note for note in step.notes)


def test_others_parts_are_in_proportion_where_one_rank_receives_other_sizes() -> None:
    step = _step(0, GROUP, [2, 4, 2, 2], [2, 6, 2, 2])
    sizes = _parts(step)
    np.testing.assert_array_equal(sizes[0], [2, 4, 2, 2])
    np.testing.assert_array_equal(sizes[:, 0], [2, 6, 2, 2])
    assert sizes[1, 1] == 12
    assert any("in proportion" in note and "--ranks" in note for note in step.notes)
    # What a rank keeps may be nothing.
    assert uneven.in_proportion([0, 6], [0, 2], 0).tolist() == [[0, 6], [2, 6]]


def test_even_parts_are_priced_as_an_even_all_to_all() -> None:
    step = _step(0, GROUP, [MIB] * 4, [MIB] * 4)
    uneven.complete([step])
    assert step.ops[0].parts is None
    assert step.notes == []


def test_plan_takes_the_networks_time_of_the_parts() -> None:
    sent, group = [4 * MIB, MIB, MIB, MIB], np.ones((4, 1))
    plan = make_plan(_step(0, GROUP, sent, [4 * MIB] * 4), WHERE, 1, "highest")
    expected = network_model(Network.of(WHERE)).uneven_time(GROUP, group * sent)
    item = next(one for one in plan.schedule.placed if one.op.collective)
    assert item.seconds == pytest.approx(expected.time_s + cal.COLLECTIVE_START_S.value)
    assert plan.schedule.busiest.sent_bytes == expected.busiest_link_bytes
    moved = plan.by_collective()["all_to_all of 4 ranks"]
    assert (moved.put_in_bytes, moved.sent_bytes) == (7 * MIB, 3 * MIB)
    assert "the largest part is 2.3 times the mean" in plan.recording.notes[0]


def test_lists_of_tensors_are_put_in_whole() -> None:
    import torch

    parts = [torch.zeros(n) for n in (1, 2, 3, 4)]
    assert put_in_bytes("alltoall_", [parts[::-1], parts]) == 40
    assert put_in_bytes("allreduce_coalesced_", [parts]) == 40
    assert put_in_bytes("reduce_scatter_", [[parts[0]], [[parts[0]] * 4]]) == 16
    assert put_in_bytes("allgather_", [[[parts[1]] * 4], [parts[1]]]) == 8
    assert put_in_bytes("all_gather_into_tensor_coalesced", [parts[:2], 4, "0"]) == 12
    assert parts_of("alltoall_", [parts[::-1], parts], None, 4, "x.py:1") == (
        (4, 8, 12, 16),
        (16, 12, 8, 4),
    )


def test_sizes_that_do_not_sum_up_to_the_rows_raise_with_the_line() -> None:
    import torch

    rows = torch.zeros(8, 2)
    with pytest.raises(PlanError, match=r"4 ranks at x\.py:1 splits 8 rows into 4 parts of 0 rows"):
        parts_of("all_to_all_single", [rows, [2] * 4, [0] * 4], rows, 4, "x.py:1")


BY_RANK = """
import torch
import torch.distributed as dist

dist.init_process_group()
rank, world = dist.get_rank(), dist.get_world_size()
weight = torch.nn.Parameter(torch.randn(64, 64, device="tpu"))
optimizer = torch.optim.SGD([weight], lr=0.1)
sends = [64 * (1 + rank % 2)] * world
takes = [64 * (1 + other % 2) for other in range(world)]
for _ in range(2):
    got = torch.empty(sum(takes), 64, device="tpu")
    dist.all_to_all_single(got, torch.randn(sum(sends), 64, device="tpu"), takes, sends)
    (got @ weight).sum().backward()
    optimizer.step()
"""
# Tokens go to the ranks of their experts, as many as a count on the device says.
EXPERTS = """
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd

dist.init_process_group()
group, world, experts = dist.group.WORLD, dist.get_world_size(), 8
router = torch.nn.Linear(64, experts, device="tpu")
weights = torch.nn.Parameter(torch.randn(experts // world, 64, 64, device="tpu"))
optimizer = torch.optim.SGD([*router.parameters(), weights], lr=0.1)
for _ in range(2):
    x = torch.randn(256, 64, device="tpu")
    chosen = router(x).softmax(-1).topk(2).indices.view(-1)
    counts = torch.bincount(chosen, minlength=experts)
    theirs = all_to_all_single(counts, None, None, group)
    sends, takes = (n.view(world, -1).sum(1).tolist() for n in (counts, theirs))
    got = all_to_all_single_autograd(x[chosen.argsort() // 2], takes, sends, group)
    (got.view(experts // world, -1, 64) @ weights).sum().backward()
    optimizer.step()
"""


def test_ranks_whose_sizes_differ_by_their_rank_are_recorded_each(planned) -> None:
    plan = planned(BY_RANK)
    assert [role["ranks"] for role in plan["roles"]] == [[0, 2], [1, 3]]
    assert "the largest part is 1.3 times the mean; from its split sizes" in plan["said"]


def test_tokens_of_experts_are_taken_to_be_even(planned) -> None:
    plan = planned(EXPERTS)
    moved = plan["communication"]["collectives"]["all_to_all of 4 ranks"]
    # Counts of 64 bits, then two rows per token; tokens need no gradient.
    assert (moved["runs"], moved["bytes_per_rank"]) == (2, 8 * 8 + 256 * 2 * 64 * 4)
    assert "uneven" not in plan["said"]
