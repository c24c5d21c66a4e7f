# SPDX-License-Identifier: Apache-2.0
"""Ops on lists that run alone: values as on CPU, and programs that other lists share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torchtpu_core.runtime import list_parts
from torchtpu_core.runtime.list_rounds import rounds_of

LAYER = ((3, 4), (5,), (5,), ())


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(list_parts, "_rounds_had", {})  # lists are divided as those before them
    with torch.tpu.set_eager_mode("strict"):
        yield


def _list(layers: int, device: str, seed: int = 0) -> list[Tensor]:
    made = torch.Generator().manual_seed(seed)
    shapes = [(7, 2), *LAYER * layers, (2,)]
    return [(torch.rand(shape, generator=made) + 0.5).to(device) for shape in shapes]


def _programs() -> int:
    return torch.tpu.counters()["programs"]


def test_steps_that_leave_layers_out_need_no_other_programs():
    def step(layers: int, device: str) -> list[Tensor]:
        values, rates = _list(layers, device), [0.5 + i for i in range(4 * layers + 2)]
        torch._foreach_addcdiv_(values, _list(layers, device, 1), _list(layers, device, 2), rates)
        return torch._foreach_norm(values) + torch._foreach_sqrt(values)

    step(6, "tpu")
    before = _programs()
    for layers in (5, 3, 8, 1):
        for got, expected in zip(step(layers, "tpu"), step(layers, "cpu"), strict=True):
            torch.testing.assert_close(got.cpu(), expected)
    assert _programs() == before


def test_equal_tensors_are_one_program_of_few_kernels():
    values = [torch.full((4096,), float(i)).to("tpu") for i in range(100)]
    before = torch.tpu.counters()
    torch._foreach_mul_(values, 2.5)
    after = torch.tpu.counters()
    assert after["runs"] - before["runs"] == 1
    assert after["programs"] - before["programs"] <= 2  # of eight tensors, and of the last four
    assert after["donated_bytes"] - before["donated_bytes"] == 100 * 4096 * 4
    assert [v[0].item() for v in values] == [2.5 * i for i in range(100)]


@pytest.mark.parametrize("mode", ["strict", "fused"])
def test_lists_of_views_agree_with_cpu(mode):
    def changed(device: str) -> list[Tensor]:
        flat = torch.arange(120.0).to(device)
        rows = [flat[i * 6 + 1 : i * 6 + 6] for i in range(20)]  # all in one storage
        columns = list(torch.arange(60.0).reshape(3, 20).to(device).unbind(1))
        torch._foreach_add_(columns, columns[::-1], alpha=0.5)
        torch._foreach_mul_([t.clone() for t in rows], torch.tensor(0.25).to(device))
        own = [t.clone() for t in rows]
        torch._foreach_lerp_(own, rows, 0.5)
        torch._foreach_copy_(own[:10], rows[10:])
        torch._foreach_mul_(rows, own)
        return [flat, *own, *columns, *torch._foreach_maximum(own, 30.0)]

    with torch.tpu.set_eager_mode(mode):
        results = changed("tpu"), changed("cpu")
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got.cpu(), expected)


def test_one_tensor_with_an_element_for_each_is_not_divided():
    weights = [float(i) for i in range(12)]
    lists = [[torch.ones(2, device=device) for _ in weights] for device in ("tpu", "cpu")]
    for each, device in zip(lists, ("tpu", "cpu"), strict=True):
        torch._foreach_addcmul_(each, list(each), list(each), torch.tensor(weights, device="cpu"))
        assert device == each[0].device.type
    for got, expected in zip(*lists, strict=True):
        torch.testing.assert_close(got.cpu(), expected)


def test_rounds_take_every_tensor_once():
    had: dict = {}
    for layers in (6, 1, 3):
        kinds = {"weight": layers, "bias": 6 * layers + 2, "table": 2, "head": 1}
        places, first = {}, 0
        for kind, count in kinds.items():
            places[kind] = list(range(first, first + count))
            first += count
        rounds = rounds_of(places, had)
        assert sorted(place for each in rounds for place in each) == list(range(first))
        assert [len(each) for each in rounds] == [7] * layers + [5]
    assert len(had) == 2
