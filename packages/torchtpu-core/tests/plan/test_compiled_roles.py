# SPDX-License-Identifier: Apache-2.0
"""Roles whose programs are compiled by themselves: programs, pickled calls, and the joined plan."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torchtpu_core.errors import PlanError
from torchtpu_core.ici.slices import parse_slice
from torchtpu_core.plan import network_calls
from torchtpu_core.plan.calls import Call, Place
from torchtpu_core.plan.compiled_roles import of_roles, pace_of
from torchtpu_core.plan.making import make_plan
from torchtpu_core.plan.program import _operands, _results
from torchtpu_core.plan.records import Block, Phase, Recording, Work
from torchtpu_core.plan.schedule import Pricer
from torchtpu_core.simulator import calibration as cal
from torchtpu_core.targets import libtpu_installed
from torchtpu_core.testing.recordings import MIB, op, recording

WHERE = parse_slice("v5e:2x2")
PRODUCT = ((1, 8192, 8192, 8192),)
needs_libtpu = pytest.mark.skipif(
    not libtpu_installed(), reason="libtpu is optional and not under an open licence"
)


def _place(storage: int, rows: int = 8) -> Place:
    return Place(storage, (rows, 4), (4, 1), 0, torch.float32, rows * 4)


def _call(func, args, out=None, group=(0, 1)) -> Call:
    return Call(func, args, {}, out, Phase.FORWARD, "script.py:1", 0, group)


SEND = _call(torch.ops.c10d.send.default, ([_place(1)], None, 1, 0))
RECEIVE = _call(torch.ops.c10d.recv_.default, ([_place(2)], None, 0, 0))


def test_what_comes_is_an_operand_and_what_goes_a_result() -> None:
    blocks = {n: Block(128, n, Phase.FORWARD, "", died=9) for n in (1, 2)}
    made = Recording(blocks=blocks, step_ends=[9])
    operands = _operands([SEND, RECEIVE], made, 0)
    assert list(operands) == [2]
    assert [place.storage for place in _results([SEND, RECEIVE], made, 9, [])] == [1]
    assert network_calls.run(SEND, None, 2) == network_calls.run(RECEIVE, None, 2) == []


def test_calls_come_through_a_pipe() -> None:
    again = pickle.loads(pickle.dumps([SEND, RECEIVE]))
    assert again == [SEND, RECEIVE]
    assert again[0].func is torch.ops.c10d.send.default


def test_uneven_all_to_all_has_no_program_of_all_ranks() -> None:
    func = torch.ops._c10d_functional.all_to_all_single.default
    even, uneven = (
        _call(func, (_place(1), sizes, [4, 4], "0"), _place(3)) for sizes in ([4, 4], [2, 6])
    )
    assert not network_calls._is_uneven(even)
    with pytest.raises(PlanError, match=r"uneven all-to-all at script.py:1 .* split sizes"):
        network_calls.run(uneven, None, 2)


def _stages(microbatches: int) -> list[Recording]:
    """Two stages: a product each forward, in order, a message between them."""
    made = []
    for rank in (0, 2):
        ops = []
        for i in range(microbatches):
            ends = {"work": Work.COLLECTIVE, "group": (0, 2), "moved_bytes": MIB}
            if rank:
                one = {"collective": "receive", "peer": 0, "writes": (20 + i,), **ends}
                ops.append(op("recv_", **one))
            read, written = (20 + i, 30 + i) if rank else (1, 10 + i)
            ops.append(op("mm", Work.MATMUL, (read,), (written,), products=PRODUCT))
            if not rank:
                one = {"collective": "collective_permute", "peer": 2, "reads": (10 + i,), **ends}
                ops.append(op("send", **one))
        step = recording(ops, {})
        step.world_size, step.rank, step.ranks = 4, rank, (rank, rank + 1)
        step.blocks[1] = next(iter(step.blocks.values()))
        made.append(step)
    return made


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_pipeline_keeps_the_pace_of_the_compiled_programs(factor) -> None:
    plan = make_plan(_stages(4), WHERE, 1, "highest")
    product_s = factor * next(item.seconds for item in plan.schedule.placed if item.op.name == "mm")
    asked = []

    def compiled(part):
        asked.append(part.recording.rank)
        alone = replace(part.schedule, step_s=4 * product_s, critical={}, sent=Counter())
        return replace(part, schedule=alone)

    made = of_roles(plan, compiled)
    first, second = made.roles
    assert asked == [0, 2]
    sent_s = next(i.seconds for i in plan.roles[0].plan.schedule.placed if i.op.name == "send")
    drive_s = (1 - cal.ICI_HIDDEN.value) * sent_s
    bubble_s = product_s + sent_s + 3 * drive_s
    assert made.step_s == pytest.approx(bubble_s + 4 * product_s, rel=1e-5)
    assert second.waits_s == pytest.approx(bubble_s, rel=1e-5)
    assert first.waits_s == pytest.approx(made.step_s - first.end_s)
    assert made.recording.rank == 2
    assert made.schedule.busiest.sent_bytes == 4 * MIB
    assert "made 2 programs" in made.recording.notes[-1]


def test_pace_leaves_messages_out() -> None:
    plan = make_plan(_stages(2), WHERE, 1, "highest").roles[0].plan
    product_s = next(item.seconds for item in plan.schedule.placed if item.op.name == "mm")
    pricer = Pricer(WHERE, 1)
    assert pace_of(plan, 2 * product_s, pricer) == pytest.approx(1.0, rel=1e-6)
    assert pace_of(plan, 5 * product_s, pricer) == pytest.approx(2.5, rel=1e-6)


PIPELINE = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

dist.init_process_group()
place = dist.get_rank()
model = nn.Linear(512, 512, bias=False).to("tpu")
stage = PipelineStage(model, place, 4, torch.device("tpu"), group=dist.group.WORLD)
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda x, y: (x - y).square().mean())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    x = torch.randn(512, 512, device="tpu")
    if place == 0:
        schedule.step(x)
    elif place == 3:
        schedule.step(target=x)
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
"""


@needs_libtpu
def test_every_stage_of_a_pipeline_is_compiled(tmp_path) -> None:
    (tmp_path / "script.py").write_text(PIPELINE)
    code = "from torchtpu_core.cli.app import main; main()"
    command = [sys.executable, "-c", code, "plan", "script.py", "--target", "v5e:2x2"]
    done = subprocess.run(
        [*command, "--compiler", "xla-tpu"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "XLA's TPU compiler made 4 programs" in " ".join(done.stdout.split())
