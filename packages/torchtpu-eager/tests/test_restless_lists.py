# SPDX-License-Identifier: Apache-2.0
"""Lists of tensors that are picked at random or left out at random stop asking for programs."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torchtpu_core import _C


@pytest.fixture(autouse=True)
def _fused() -> Iterator[None]:
    torch.tpu.init()
    _C.forget_streams()
    with torch.tpu.set_eager_mode("fused"):
        yield
    _C.forget_streams()


def _memory(device: str) -> list[Tensor]:
    """Items of one shape that lie in four ways: alone, reshaped, and as rows of others."""
    whole = torch.arange(80.0).reshape(20, 4).to(device)
    other = torch.arange(80.0, 140.0).reshape(3, 20).to(device)
    items = [torch.full((1, 4), float(i)).to(device) for i in range(20)]
    items += [torch.full((4,), -float(i)).to(device).view(1, 4) for i in range(20)]
    items += [whole[i : i + 1] for i in range(20)]
    return items + [other[i : i + 1, 3 * i : 3 * i + 4] for i in range(3)]


@pytest.mark.parametrize(
    ("mode", "join", "known"),
    [("fused", torch.cat, 12), ("fused", torch.stack, 12), ("strict", torch.cat, 30)],
)
def test_items_of_a_memory_picked_at_random_stop_compiling(mode, join, known) -> None:
    here, there = _memory("cpu"), _memory("tpu")
    draw = random.Random(0)
    with torch.tpu.set_eager_mode(mode):
        for step in range(known + 20):
            if step == known:
                torch.tpu.wait_for_compiles()
                before = torch.tpu.counters()["programs"]
            picked = [draw.randrange(len(here)) for _ in range(6)]
            expected = join([here[i] for i in picked]) * 2
            got = join([there[i] for i in picked]) * 2
            torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=0)
    torch.tpu.wait_for_compiles()
    assert torch.tpu.counters()["programs"] - before <= 1


def test_joined_items_have_gradients() -> None:
    draw = random.Random(1)
    results = []
    for device in ("cpu", "tpu"):
        items = [item.requires_grad_() for item in _memory(device)[:40]]
        draw.seed(1)
        for _ in range(40):
            picked = [items[draw.randrange(len(items))] for _ in range(6)]
            (torch.cat(picked) * 3).sum().backward()
            picked[0].grad.sum().item()
        results.append([item.grad.cpu() if item.grad is not None else None for item in items])
    for here, there in zip(*results, strict=True):
        assert (here is None) == (there is None)
        if here is not None:
            torch.testing.assert_close(there, here, rtol=0, atol=0)


def test_items_written_in_between_are_joined_as_they_are_then() -> None:
    draw = random.Random(2)
    here, there = _memory("cpu")[:40], _memory("tpu")[:40]
    for _ in range(30):
        picked = [draw.randrange(len(here)) for _ in range(5)]
        for items in (here, there):
            items[picked[0]].add_(1.0)
        expected, got = torch.cat([here[i] for i in picked]), torch.cat([there[i] for i in picked])
        for items in (here, there):
            items[picked[1]].mul_(0.5)
        torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=0)


def test_optimizer_of_parameters_left_out_at_random_stops_compiling() -> None:
    draw = random.Random(3)
    steps = [[draw.random() < 0.5 for _ in range(6)] for _ in range(30)]
    results = []
    for device in ("cpu", "tpu"):
        torch.manual_seed(0)
        weights = [torch.randn(i + 1, 2).to(device).requires_grad_() for i in range(6)]
        optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9, foreach=True)
        for step, taken in enumerate(steps):
            if step == 18:
                torch.tpu.wait_for_compiles()
                before = torch.tpu.counters()["programs"]
            optimizer.zero_grad()
            for weight, is_taken in zip(weights, taken, strict=True):
                if is_taken:
                    weight.square().sum().backward()
            optimizer.step()
        results.append([weight.detach().cpu() for weight in weights])
    torch.testing.assert_close(results[1], results[0])
    torch.tpu.wait_for_compiles()
    assert torch.tpu.counters()["programs"] - before <= 2


@pytest.mark.parametrize("mode", ["fused", "strict"])
def test_tensors_without_elements_have_their_place_in_a_list(mode) -> None:
    """A rank that has no row of the last layer has such parameters."""
    shapes = [(3, 7), (3,)] * 4 + [(0, 7), (0,)]
    with torch.tpu.set_eager_mode(mode):
        lists = [[torch.empty(shape, device="tpu") for shape in shapes] for _ in range(2)]
        torch._foreach_zero_([t for each in lists for t in each])
        torch._foreach_add_(lists[0][:-2], 2.0)
        torch.tpu.synchronize()
        torch._foreach_add_(lists[1], lists[0])
        torch.tpu.synchronize()
        results = [t.cpu() for t in lists[1]]
    for result, shape in zip(results, shapes, strict=True):
        torch.testing.assert_close(result, torch.full(shape, 2.0), rtol=0, atol=0)
