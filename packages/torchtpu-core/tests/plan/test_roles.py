# SPDX-License-Identifier: Apache-2.0
"""Ranks that do different things: how they are found, and how their steps are joined."""

from __future__ import annotations

from subprocess import TimeoutExpired

import numpy as np
import pytest
from torchtpu_core.errors import PlanError
from torchtpu_core.ici.slices import parse_slice
from torchtpu_core.plan.exchange import Alone, Mailbox, NeedsOthers
from torchtpu_core.plan.figures import cores
from torchtpu_core.plan.making import make_plan
from torchtpu_core.plan.ranks import Branches, Rank
from torchtpu_core.plan.records import Phase, Work
from torchtpu_core.plan.roles import _alike, _declared, _wait_for, record_roles
from torchtpu_core.simulator import calibration as cal
from torchtpu_core.testing.recordings import MIB, op, recording

WHERE = parse_slice("v5e:2x2")
PRODUCT = ((1, 8192, 8192, 8192),)


def _rank(mine: int, world: int) -> tuple[Rank, Branches]:
    branches = Branches(world)
    return Rank.of(mine, np.arange(world), branches), branches


@pytest.mark.parametrize(
    ("ask", "classes"),
    [
        (lambda rank: rank == 0, [(0,), (1, 2, 3, 4, 5)]),
        (lambda rank: not rank, [(0,), (1, 2, 3, 4, 5)]),
        (lambda rank: rank < 4, [(0, 1, 2, 3), (4, 5)]),
        (lambda rank: rank % 2 == 0, [(0, 2, 4), (1, 3, 5)]),
        (lambda rank: 1 + rank // 2 == 2, [(0, 1, 4, 5), (2, 3)]),
        (lambda rank: (rank == 0, rank == 5), [(0,), (1, 2, 3, 4), (5,)]),
        (lambda rank: f"{rank} of {[rank][0] + 1}", [(0, 1, 2, 3, 4, 5)]),
    ],
)
def test_ranks_with_the_same_answers_are_a_class(ask, classes) -> None:
    for mine in range(6):
        rank, branches = _rank(mine, 6)
        assert ask(rank) == ask(mine)
        assert branches.classes() == classes


def test_declared_ranks_stand_for_those_up_to_the_next() -> None:
    assert _declared([0, 4], 6) == [(0, 1, 2, 3), (4, 5)]
    assert _declared([5, 2], 6) == [(2, 3, 4, 0, 1), (5,)]
    with pytest.raises(PlanError, match="0 to 5"):
        _declared([6], 6)


def test_mailbox_brings_objects_in_order_to_who_stands_for_a_rank(tmp_path) -> None:
    stands_for = {0: 0, 1: 0, 2: 2, 3: 2}
    one, other = (Mailbox(tmp_path, rank, stands_for.__getitem__) for rank in (0, 2))
    one.send(3, ["a"])
    one.send(2, ["b"])
    assert [other.receive(1), other.receive(0)] == [["a"], ["b"]]
    with pytest.raises(PlanError, match=r"stands itself.*--ranks 1,0"):
        one.receive(1)
    (tmp_path / "failed").touch()
    with pytest.raises(PlanError, match="which failed"):
        other.receive(0)


def test_rank_alone_cannot_receive() -> None:
    with pytest.raises(NeedsOthers):
        Alone().receive(1)


def _message(kind: str, ends: tuple[int, int], storage: int):
    more = {"work": Work.COLLECTIVE, "collective": kind, "group": ends, "moved_bytes": MIB}
    if kind == "receive":
        return op("recv_", writes=(storage,), peer=ends[0], **more)
    return op("send", reads=(storage,), peer=ends[1], **more)


def _stages(microbatches: int) -> list:
    """Two stages: a product each forward, in order, a message between them."""
    first, second = [], []
    for i in range(microbatches):
        first += [op("mm", Work.MATMUL, (1,), (10 + i,), products=PRODUCT)]
        first += [_message("collective_permute", (0, 2), 10 + i)]
        second += [_message("receive", (0, 2), 20 + i)]
        second += [op("mm", Work.MATMUL, (20 + i,), (30 + i,), products=PRODUCT)]
    made = [recording(first, {}), recording(second, {})]
    for one, rank in zip(made, (0, 2), strict=True):
        one.world_size, one.rank, one.ranks = 4, rank, (rank, rank + 1)
        one.blocks[1] = next(iter(one.blocks.values()))
    return made


@pytest.mark.parametrize("microbatches", [1, 4])
def test_step_of_a_pipeline_has_its_bubble(microbatches) -> None:
    # The second stage begins when the first message has come, and keeps the pace of the first,
    # whose core also drives what it sends.
    plan = make_plan(_stages(microbatches), WHERE, 1, "highest")
    first, second = plan.roles
    product_s = next(i.seconds for i in first.plan.schedule.placed if i.op.name == "mm")
    sent = next(i for i in first.plan.schedule.placed if i.op.name == "send")
    drive_s = (1 - cal.ICI_HIDDEN.value) * sent.seconds
    bubble_s = product_s + sent.seconds + (microbatches - 1) * drive_s
    assert second.waits_s == pytest.approx(bubble_s, rel=1e-6)
    assert plan.step_s == pytest.approx(bubble_s + microbatches * product_s, rel=1e-6)
    assert plan.step_s == second.plan.step_s == first.plan.step_s
    assert (plan.recording.rank, first.name, second.name) == (2, "ranks 0-1", "ranks 2-3")
    assert first.waits_s == pytest.approx(plan.step_s - first.end_s)
    assert not plan.recording.notes


def _advice(plan, word: str):
    return next((item for item in plan.advice if word in item.title), None)


def test_twice_the_microbatches_gain_what_two_steps_of_them_waste() -> None:
    once, twice = (make_plan(_stages(n), WHERE, 1, "highest") for n in (4, 8))
    found = _advice(once, "microbatches")
    assert found.gain_s == pytest.approx(once.step_s - twice.step_s / 2, rel=0.01)
    assert found.part == pytest.approx(found.gain_s / once.step_s)
    assert _advice(once, "busiest stage") is None  # both do the same


def test_uneven_stages_gain_what_even_ones_save() -> None:
    def stages(first: int, second: int):
        made = _stages(4)
        for one, products in zip(made, (first, second), strict=True):
            for item in one.ops:
                item.products *= products
        return make_plan(made, WHERE, 1, "highest")

    uneven, even = stages(1, 3), stages(2, 2)
    found = _advice(uneven, "busiest stage")
    assert found.gain_s == pytest.approx(uneven.step_s - even.step_s, rel=0.02)
    assert "the work of ranks 2 to 3" in found.why


def test_collective_waits_for_the_rank_with_more_to_do() -> None:
    def step(products: int, rank: int, ranks: tuple[int, ...]):
        ops = [op("mm", Work.MATMUL, (1,), (2,), products=PRODUCT) for _ in range(products)]
        more = {"collective": "all_reduce", "group": (0, 1, 2, 3), "moved_bytes": MIB}
        ops.append(op("allreduce_", Work.COLLECTIVE, (2,), (2,), Phase.BACKWARD, **more))
        ops.append(op("add", Work.ELEMENTWISE, (2,), (3,)))
        made = recording(ops, {})
        made.world_size, made.rank, made.ranks = 4, rank, ranks
        made.blocks[1] = made.blocks[2]
        return made

    plan = make_plan([step(3, 0, (0,)), step(1, 1, (1, 2, 3))], WHERE, 1, "highest")
    slow, fast = plan.roles
    assert plan.recording.rank == 0
    product_s = next(i.seconds for i in slow.plan.schedule.placed if i.op.name == "mm")
    starts = [
        next(i.start_s for i in role.plan.schedule.placed if i.op.name == "allreduce_")
        for role in (slow, fast)
    ]
    assert starts == pytest.approx([3 * product_s] * 2)
    assert fast.plan.step_s == slow.plan.step_s


def test_collectives_of_roles_that_do_the_same_are_fetched_ahead_as_without_roles() -> None:
    def step(rank: int, ranks: tuple[int, ...]):
        more = {"collective": "all_gather", "group": (0, 1, 2, 3), "moved_bytes": MIB}
        ops = []
        for layer in range(4):
            ops.append(op("gather", Work.COLLECTIVE, (1,), (10 + layer,), **more))
            ops.append(op("mm", Work.MATMUL, (10 + layer,), (2,), products=PRODUCT))
        made = recording(ops, {})
        made.world_size, made.rank, made.ranks = 4, rank, ranks
        made.blocks[1] = made.blocks[2]
        return made

    alone = make_plan(step(0, (0, 1, 2, 3)), WHERE, 1, "highest")
    joined = make_plan([step(0, (0,)), step(1, (1, 2, 3))], WHERE, 1, "highest")
    assert joined.step_s == pytest.approx(alone.step_s)
    assert joined.schedule.hidden_s > 0


def test_page_draws_the_core_of_every_role() -> None:
    plan = make_plan(_stages(4), WHERE, 1, "highest")
    (bars,) = cores(plan)["data"]
    for role in plan.roles:
        busy_s = sum(i.seconds for i in role.plan.schedule.placed if i.op.name == "mm")
        drawn = [ms for row, ms in zip(bars["y"], bars["x"], strict=True) if row == role.name]
        assert sum(drawn) == pytest.approx(busy_s * 1e3, rel=0.01)


def test_stages_in_the_middle_that_do_the_same_stay_apart() -> None:
    # The last stage receives from rank 2, which rank 1 cannot stand for.
    def stage(rank: int):
        made = recording([_message("collective_permute", (rank, rank + 1), 10)], {})
        made.world_size, made.rank, made.ranks = 4, rank, (rank,)
        return made

    assert len(_alike([stage(1), stage(2)])) == 2
    same = stage(1)
    same.ranks = (3,)
    assert [one.ranks for one in _alike([stage(1), same])] == [(1, 3)]


def test_message_that_nobody_sends_is_noted() -> None:
    stages = _stages(1)
    stages[0].ops = stages[0].ops[:1]
    stages[0].step_ends = [1]
    plan = make_plan(stages, WHERE, 1, "highest")
    assert any("nobody was waited for" in note for note in plan.recording.notes)


PIPELINE = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

dist.init_process_group()
mesh = init_device_mesh("tpu", (2, 2), mesh_dim_names=("pp", "dp"))
last = mesh.get_local_rank("pp") == 1
layers = [nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)]
layers = [*layers, nn.Linear(1024, 4096)] if last else [nn.Embedding(1000, 1024), *layers]
model = nn.Sequential(*layers).to("tpu")
pipeline = mesh.get_group("pp")
stage = PipelineStage(model, int(last), 2, torch.device("tpu"), group=pipeline)
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda x, y: (x.mean() - y.mean()) ** 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(3):
    optimizer.zero_grad()
    tokens = torch.randint(0, 1000, (8, 256), device="tpu")
    if last:
        schedule.step(target=torch.randn(8, 256, device="tpu"))
    else:
        schedule.step(tokens)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=mesh.get_group("dp"))
    optimizer.step()
"""
ONLY_RANK_0 = """
import sys
import torch
import torch.distributed as dist

dist.init_process_group()
weight = torch.nn.Parameter(torch.randn(2048, 2048, device="tpu"))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    x = torch.randn(2048, 2048, device="tpu")
    (x @ weight).sum().backward()
    if dist.get_rank() == 0:
        print("rank 0")
        if "--extra" in sys.argv:
            for _ in range(20):
                x = x @ x
    dist.all_reduce(weight.grad)
    optimizer.step()
    optimizer.zero_grad()
"""


def test_stages_of_a_pipeline_are_found_and_planned(planned) -> None:
    plan = planned(PIPELINE)
    first, last = plan["roles"]
    assert [first["ranks"], last["ranks"]] == [[0, 1], [2, 3]]
    # Parameters, gradients and momentum of each stage: 4 bytes each.
    layers = 2 * (1024 * 1024 + 1024)
    for role, parameters in (
        (first, layers + 1000 * 1024),
        (last, layers + 1024 * 4096 + 4096),
    ):
        assert role["hbm_peak_bytes"] > 12 * parameters
        assert role["end_s"] <= plan["step_s"]
    assert first["waits_s"] > 0
    assert last["waits_s"] > 0
    # Four microbatches of two rows, on two data-parallel ranks.
    assert plan["tokens_per_s"] * plan["step_s"] == pytest.approx(8 * 256 * 2)
    sent = plan["communication"]["collectives"]["collective_permute of 2 ranks"]
    assert sent["runs"] == 4
    assert sent["bytes_per_rank"] == 8 * 256 * 1024 * 4
    assert "nobody was waited for" not in plan["said"]


def test_work_of_rank_0_alone_holds_all_up(planned) -> None:
    alike = planned(ONLY_RANK_0)
    assert alike["roles"] == []  # it only prints
    plan = planned(ONLY_RANK_0, "--", "--extra")
    zero, others = plan["roles"]
    assert [zero["ranks"], others["ranks"]] == [[0], [1, 2, 3]]
    extra_s = plan["step_s"] - alike["step_s"]
    assert extra_s > 0
    assert others["waits_s"] == pytest.approx(extra_s, rel=0.05)
    assert zero["waits_s"] == pytest.approx(0.0, abs=1e-6)


RANK_FROM_ENVIRONMENT = """
import os
import torch
import helper
width = 1024 if int(os.environ["RANK"]) % 2 == 0 else 2048
weight = torch.nn.Parameter(torch.randn(1024, width, device="tpu"))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    x = torch.randn(512, 1024, device="tpu")
    for _ in range(helper.times()):
        x = x @ torch.randn(1024, 1024, device="tpu")
    (x @ weight).sum().backward()
    optimizer.step()
"""
HELPER = """
import os
def times():
    return 5 if os.getenv("LOCAL_RANK") == "3" else 1
"""


def test_rank_of_the_environment_is_followed(planned, tmp_path) -> None:
    (tmp_path / "helper.py").write_text(HELPER)
    plan = planned(RANK_FROM_ENVIRONMENT, "--target", "v5e:2x4")
    ranks = {tuple(role["ranks"]) for role in plan["roles"]}
    # All eight are on one host.
    assert ranks == {(0, 2, 4, 6), (1, 5, 7), (3,)}
    assert "was read from the environment" not in plan["said"]


def test_ranks_that_take_long_to_record_are_told_of(tmp_path) -> None:
    class Slow:
        """A process that has not ended when it is first waited for."""

        ended = False

        def wait(self, seconds: float) -> None:
            if not self.ended:
                self.ended = True
                raise TimeoutExpired("ranks", seconds)

    said: list[str] = []
    (tmp_path / "recorded-4").touch()
    _wait_for(Slow(), "train.py", 2, tmp_path, said.append)
    assert said == ["train.py: 0 s, 1 of 2 ranks are still being recorded"]


KILLED = """
import os, torch
import torch.distributed as dist
dist.init_process_group()
if dist.get_rank() == 2:
    os.kill(os.getpid(), 9)
if dist.get_rank() == 0:
    dist.recv_object_list([None], src=2)
"""


def test_rank_whose_process_is_killed_is_named_and_nobody_waits_for_it(tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(KILLED)
    with pytest.raises(PlanError, match="records rank 2 ended without a word"):
        record_roles(script, [], parse_slice("v5e:2x2"), 1, [0, 2])
