# SPDX-License-Identifier: Apache-2.0
"""Streams that differ in sizes: what repeats in them between the other ops runs as programs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torchtpu_core import _C
from torchtpu_core.runtime import varying

WIDTH = 8


@pytest.fixture(autouse=True)
def _fused() -> Iterator[None]:
    torch.tpu.init()
    varying.forget()
    with torch.tpu.set_eager_mode("fused"):
        yield


def _ready() -> None:
    torch.tpu.synchronize()
    torch.tpu.wait_for_compiles()


def _layer(x: Tensor, w: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
    """Five ops that repeat, three on the growing cache, five that repeat."""
    for _ in range(2):
        x = torch.tanh(x @ w) + x
    x = x * 0.5
    cache = torch.cat((cache, x))
    y = torch.softmax(x @ cache.t(), -1) @ cache
    for _ in range(2):
        y = torch.relu(y @ w) + y
    return y / 2, cache


def _write(device: str, steps: int, between: Callable[[int], None] = lambda _: None) -> list[float]:
    torch.manual_seed(0)
    w = (torch.randn(WIDTH, WIDTH) / 4).to(device)
    x = torch.randn(1, WIDTH).to(device)
    caches = [torch.randn(1, WIDTH).to(device) for _ in range(2)]
    read = []
    for step in range(steps):
        for i, cache in enumerate(caches):
            x, caches[i] = _layer(x, w, cache)
        read.append(x.sum().item())
        between(step)
    return read


def test_what_repeats_between_ops_of_other_sizes_runs_in_programs() -> None:
    counted = []

    def count(step: int) -> None:
        _ready()
        counted.append(torch.tpu.counters())

    expected = _write("cpu", 30)
    earlier = torch.tpu.explain().compiles
    assert _write("tpu", 30, count) == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert {f.outcome for f in torch.tpu.explain().flushes[-5:]} >= {"in pieces"}
    ops, fused, compiles = (
        counted[-1][name] - counted[-11][name] for name in ("ops", "fused_ops", "compiles")
    )
    assert fused >= ops / 2
    assert compiles <= 2 * 5 * 10, "no more than the ops of other sizes may ask for"
    mine = [c for c in torch.tpu.explain().compiles if not any(c is e for e in earlier)]
    asked = [c.ops for c in mine if c.ops > 1]
    assert len(asked) <= 12


def test_what_follows_a_box_of_other_sizes_is_one_program_from_the_sixth_step_on() -> None:
    w = (torch.randn(WIDTH, WIDTH) / 4).to("tpu")
    fused = []
    for step in range(7):
        image = torch.randn(16, WIDTH).to("tpu")
        image[: step + 2] = image[-step - 2 :] * 0.5
        for _ in range(6):
            image = torch.relu(image @ w) + image
        before = torch.tpu.counters()["fused_ops"]
        image.sum().item()
        fused.append(torch.tpu.counters()["fused_ops"] - before)
        _ready()
    assert min(fused[5:]) >= 18


def test_sizes_that_drift_ask_for_few_programs() -> None:
    rows = torch.randn(64, 4).to("tpu")
    earlier = torch.tpu.explain().compiles
    for step in range(200):
        mask = torch.arange(64) < 8 + step // 5  # each count five times in a row
        chosen = rows[mask.to("tpu")]
        ((chosen * 2 + 1).sin() * chosen).sum().item()
        _ready()
    mine = [c for c in torch.tpu.explain().compiles if not any(c is e for e in earlier)]
    assert len([c for c in mine if c.ops > 1]) <= 12


def test_an_error_in_a_piece_names_the_users_line() -> None:
    table = torch.randn(5, WIDTH).to("tpu")
    cache = torch.randn(1, WIDTH).to("tpu")
    with pytest.raises(IndexError, match=r"test_pieces\.py"):
        for step in range(20):
            index = torch.tensor([step % 5 if step < 15 else 7]).to("tpu")
            x = torch.tanh(torch.relu(table[index] * 2) + 1)
            cache = torch.cat((cache, x))
            cache.sum().item()
            _ready()


def _random_step(seed: int) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A step of ops over views, writes and random numbers, some of them on what grows."""
    pick = random.Random(seed)
    plan = [pick.randrange(9) for _ in range(18)]

    def step(x: Tensor, w: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone()
        for kind in plan:
            if kind == 0:
                x = torch.tanh(x @ w)
            elif kind == 1:
                x[:, 1:3].mul_(0.5)
            elif kind == 2:
                x = x.t().contiguous().t() + 1
            elif kind == 3:
                x.add_(w[0])
            elif kind == 4:
                cache = torch.cat((cache, x.detach()))
            elif kind == 5:
                x = x + cache.mean(0)
            elif kind == 6:
                x = x * torch.rand(1, WIDTH, device=x.device)
            elif kind == 7:
                w[0] = x[0] / 4
            else:
                x = torch.nn.functional.layer_norm(x, (WIDTH,))
        return x, cache

    return step


@pytest.mark.parametrize("seed", range(12))
def test_random_steps_give_the_values_of_strict(seed: int) -> None:
    step = _random_step(seed)
    found = []
    for mode in ("strict", "fused"):
        with torch.tpu.set_eager_mode(mode):
            torch.manual_seed(seed)
            x, w, cache = (
                torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(n)).to("tpu")
                for n in (1, WIDTH, 2)
            )
            values = []
            for _ in range(14):
                x, cache = step(x, w, cache)
                values.append(x.sum().item())
                if mode == "fused":
                    _ready()
            found.append((torch.tensor(values), w.cpu(), cache.cpu()))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


def test_a_program_that_only_a_forgotten_stream_held_is_dropped() -> None:
    def stream(number: int) -> Tensor:
        x = torch.ones(3, device="tpu")
        for bit in range(13):
            x = x + 1.0 if number >> bit & 1 else x * 0.5
        torch.tpu.synchronize()
        return x

    for _ in range(5):
        expected = stream(5000)
        _ready()
    _C.clear_programs()
    # More than are remembered. The journal lets go of the program, and holds no GIL then.
    for number in range(1, 5000):
        stream(number)
    assert torch.equal(stream(5000), expected)
