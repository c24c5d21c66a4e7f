# SPDX-License-Identifier: Apache-2.0
"""Copies of whole storages that XLA drops, and results that products write themselves."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torchtpu_core.plan.identity_copies import drop_identity_copies, is_identity
from torchtpu_core.plan.lifetimes import lifetimes_of
from torchtpu_core.plan.memory import memory_of
from torchtpu_core.plan.records import Category, HostRead, Phase, Work
from torchtpu_core.plan.session import record
from torchtpu_core.plan.vmem import Vmem
from torchtpu_core.targets import parse_target
from torchtpu_core.testing.recordings import MIB, op, recording

BACK = Phase.BACKWARD


def _copy(target: int, source: int):
    return op("copy_", Work.MOVE, (target, source), (target,), BACK, identity=True)


def _clone(source: int, made: int):
    return op("clone", Work.MOVE, (source,), (made,), BACK, identity=True)


def _names(made) -> list[str]:
    return [one.name for one in made.ops]


def test_copies_to_and_fro_of_a_gradient_are_one_value() -> None:
    ops = [
        op("made", Work.ELEMENTWISE, (1,), (2,), BACK),
        _copy(3, 2),
        _clone(3, 4),
        _copy(3, 4),
        op("sum", Work.ELEMENTWISE, (4,), (5,), BACK),
        op("mm", Work.MATMUL, (3,), (6,), BACK),
    ]
    made = recording(ops, {2: 2, 3: 6, 4: 5})
    made.reads["script.py:1"] = HostRead("script.py:1", "a number", last=5)
    drop_identity_copies(made)
    assert _names(made) == ["made", "sum", "mm"]
    assert [one.reads for one in made.ops] == [(1,), (2,), (2,)]
    assert made.blocks[2].died == made.step_ends[0] == 3
    assert made.reads["script.py:1"].last == 2


@pytest.mark.parametrize("read", [True, False])
def test_copy_stays_if_it_is_written_while_its_source_is_read(read) -> None:
    ops = [
        op("made", Work.ELEMENTWISE, (1,), (2,)),
        _clone(2, 3),
        op("add_", Work.ELEMENTWISE, (3, 1), (3,)),
        op("mm", Work.MATMUL, (3, 2) if read else (3,), (4,)),
    ]
    made = recording(ops, {2: 4, 3: 4})
    drop_identity_copies(made)
    assert ("clone" in _names(made)) == read


@pytest.mark.parametrize(("size", "stays"), [(MIB, False), (MIB // 2, True)])
def test_value_copied_before_it_is_changed_is_the_copy(size, stays) -> None:
    ops = [
        op("made", Work.ELEMENTWISE, (1,), (2,)),
        op("sum", Work.ELEMENTWISE, (2,), (6,)),
        _clone(2, 3),
        op("silu_", Work.ELEMENTWISE, (2,), (2,)),
        op("mm", Work.MATMUL, (2,), (4,)),
        op("silu_backward", Work.ELEMENTWISE, (4, 3), (5,), BACK),
    ]
    ops[3].write_bytes = (size,)  # the half of a storage is no value of its own
    made = recording(ops, {2: 5, 3: 6, 4: 6})
    drop_identity_copies(made)
    assert ("clone" in _names(made)) == stays
    if not stays:
        assert [(one.reads, one.writes) for one in made.ops] == [
            *[((1,), (3,)), ((3,), (6,)), ((3,), (2,))],
            *[((2,), (4,)), ((4, 3), (5,))],
        ]
        assert (made.blocks[3].born, made.blocks[2].born) == (0, 2)


def test_activations_in_place_take_no_more_than_others(tmp_path) -> None:
    peaks = []
    for inplace in (True, False):
        script = tmp_path / f"script_{inplace}.py"
        script.write_text(NETWORK.replace("INPLACE", str(inplace)))
        made = record(script, [], parse_target("v5e:1x1").slice_, 1)
        start, end = made.step()
        peaks.append(memory_of(made.ops, made.blocks, (start, end), 1 << 34).peak_bytes)
    assert peaks[0] == peaks[1]


@pytest.mark.parametrize(("died", "stays"), [(3, False), (None, True)])
def test_copy_that_outlives_the_step_stays(died, stays) -> None:
    ops = [
        op("made", Work.ELEMENTWISE, (1,), (2,)),
        _clone(2, 3),
        op("mm", Work.MATMUL, (3,), (4,)),
    ]
    made = recording(ops, {2: 3, 3: died})
    drop_identity_copies(made)
    assert ("clone" in _names(made)) == stays


def test_copy_of_what_the_optimizer_changes_later_stays() -> None:
    ops = [
        op("read", Work.ELEMENTWISE, (1,), (2,)),
        _clone(1, 3),
        op("add_", Work.ELEMENTWISE, (1, 2), (1,)),
        op("mm", Work.MATMUL, (3,), (4,)),
    ]
    made = recording(ops, {2: 3, 3: 4})
    drop_identity_copies(made)
    assert "clone" in _names(made)


def test_only_whole_storages_in_the_same_order_are_identities() -> None:
    with FakeTensorMode():
        x = torch.empty(8, 16)
        copies = torch.ops.aten.copy_.default
        assert is_identity("clone", (x,), x.clone())
        assert is_identity("copy_", (torch.empty(8, 16), x), copies(torch.empty(8, 16), x))
        for other in (x.t(), x[:4], x[:, :8], x[:1].expand(8, 16)):
            made = other.clone(memory_format=torch.contiguous_format)
            assert not is_identity("clone", (other,), made)
        for other in (torch.empty(16, 8).t(), x[:1], x.double(), 1.0):
            assert not is_identity("copy_", (x, other), x)
        assert not is_identity("add", (x, x), x + x)
        sparse = torch.sparse_coo_tensor(torch.zeros(1, 2, dtype=torch.long), torch.empty(2), (8,))
        assert not is_identity("clone", (sparse,), sparse.clone())


SCRIPT = """
import torch
from torch.nn import functional as F

weight = torch.randn(64, 1000).to("tpu").requires_grad_()
bias = torch.randn(1000).to("tpu").requires_grad_()
optimizer = torch.optim.SGD([weight, bias], lr=0.1)
for _ in range(3):
    x, labels = torch.randn(256, 64).to("tpu"), torch.randint(0, 1000, (256,)).to("tpu")
    logits = (x @ weight).view(8, 32, 1000).add_(bias)
    optimizer.zero_grad()
    F.cross_entropy(logits.view(-1, 1000), labels).backward()
    optimizer.step()
"""


NETWORK = """
import torch
from torch import nn

def block(features, activation):
    return nn.Conv2d(features, 64, 3, padding=1), nn.BatchNorm2d(64), activation(inplace=INPLACE)

kinds = nn.ReLU6, nn.SiLU, nn.Hardswish, nn.Hardsigmoid, nn.LeakyReLU
layers = (layer for i, kind in enumerate(kinds) for layer in block(64 if i else 3, kind))
model = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(10))
model(torch.randn(8, 3, 32, 32))
model.to("tpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 3, 32, 32, device="tpu")).square().sum().backward()
    optimizer.step()
"""


def test_bias_in_place_on_a_view_has_no_copies_of_gradients(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    made = record(script, [], parse_target("v5e:1x1").slice_, 1, keep_calls=True)
    start, end = made.step()
    assert not {"clone", "copy_"} & {one.name for one in made.ops[start:end]}
    assert all(call.index <= len(made.ops) for call in made.calls)


@pytest.mark.parametrize(
    ("reader", "written", "died", "category", "there"),
    [
        ("add", MIB, None, None, False),
        ("add", MIB, 2, None, True),  # the sum stays within the step: it, or the product, is there
        ("_to_copy", 2 * MIB, None, None, True),  # others widen the product themselves
        ("_to_copy", 2 * MIB, None, Category.GRADIENTS, False),  # of a weight that was rounded
        ("sum", MIB // 8, None, None, True),
    ],
)
def test_product_is_nowhere_if_its_sums_become_a_result(
    reader, written, died, category, there
) -> None:
    ops = [
        op("mm", Work.MATMUL, (1,), (2,), products=((1, 4096, 4096, 4096),)),
        op(reader, Work.ELEMENTWISE, (2, 1), (3,)),
        op("mm", Work.MATMUL, (3,), (4,), products=((1, 4096, 4096, 4096),)),
    ]
    made = recording(ops, {2: 2, 3: died} if died else {2: 2})
    made.blocks[3].size_bytes, made.blocks[3].category = written, category
    made.blocks[2].shape = (512, 512)
    made.blocks[3].shape = (512, 64) if reader == "sum" else (512, 512)
    lives = lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives
    assert bool({2, 3} & {life.storage for life in lives}) == there
