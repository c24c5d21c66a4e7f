# SPDX-License-Identifier: Apache-2.0
"""Groups: ops in a row whose sizes vary together run as one program, with the CPU's values."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchtpu_core import _C
from torchtpu_core.runtime import background, groups

SIZES = (9, 5, 12, 7, 14, 11, 6, 13, 10, 15, 8)


@pytest.fixture(autouse=True)
def _afresh(compiles: Callable[[], int]) -> Iterator[None]:
    groups.forget()
    _C.forget_streams()
    yield
    assert compiles() > 0


def _runs(step: Callable[[], object]) -> tuple[int, int]:
    """How many programs ran in a step, and for how many ops."""
    torch.tpu.wait_for_compiles()
    before = torch.tpu.counters()
    step()
    torch.tpu.synchronize()
    after = torch.tpu.counters()
    return after["runs"] - before["runs"], after["ops"] - before["ops"]


def _takes_over(step: Callable[[int], object]) -> None:
    """Streams whose groups were not there yet run at once a few times first."""
    assert any(_runs(lambda size=size: step(size)) == (1, 4) for size in SIZES * 2 if size != 7)


class Experts(nn.Module):
    """Rows go to the expert that the router prefers, expert by expert."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.router = nn.Linear(8, count, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)) for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.router(x).softmax(-1).topk(1, -1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            (rows,) = torch.where(chosen[:, 0] == index)
            out = out.index_add(0, rows, expert(x[rows]) * weight[rows])
        return out


def test_experts_of_varying_rows_run_in_groups() -> None:
    def trainer(device: str) -> Callable[[], float]:
        torch.manual_seed(0)
        model = Experts(3).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        drawn = torch.Generator().manual_seed(1)

        def step() -> float:
            x = torch.randn(60, 8, generator=drawn).to(device)
            loss = F.mse_loss(model(x), -x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.item()

        return step

    ours, expected = trainer("tpu"), trainer("cpu")
    for _ in range(24):
        torch.testing.assert_close(ours(), expected(), rtol=1e-4, atol=1e-5)
    fewest = min((_runs(ours) for _ in range(4)), key=lambda found: found[0])
    assert fewest[0] < fewest[1] / 3


def _reversed(x: Tensor, w: Tensor) -> Tensor:
    return x.flip(0) * 2


def _transposed(x: Tensor, w: Tensor) -> Tensor:
    return (w @ x.t()).t().contiguous() + x


def _of_heads(x: Tensor, w: Tensor) -> Tensor:
    heads = (x @ w).view(len(x), 2, 4).transpose(0, 1)
    return (heads.softmax(1) @ heads.mT @ heads).transpose(0, 1).reshape(len(x), 8)


def _twice(x: Tensor, w: Tensor) -> Tensor:
    return torch.cat([x, x * w[0]], 0).tanh()[: len(x)] + 1


def _with_a_row(x: Tensor, w: Tensor) -> Tensor:
    return torch.cat([w[:1], x], 0).cumsum(0)[1:] / (len(x) + 1)


def _in_place(x: Tensor, w: Tensor) -> Tensor:
    y = x.clone()
    y.mul_(w[0]).add_(x).clamp_(-2, 2)
    y[1:] += 1
    return y


def _spread(x: Tensor, w: Tensor) -> Tensor:
    index = torch.arange(len(x), device=x.device).remainder(3)
    return x + torch.zeros_like(w[:3]).index_add(0, index, x)[index]


def _normal(x: Tensor, w: Tensor) -> Tensor:
    return F.layer_norm(x, (8,)) - x.mean(0)


def _flat(x: Tensor, w: Tensor) -> Tensor:
    return (x.reshape(-1) * 3).view(-1, 4).sum(1).view(len(x), 2).repeat(1, 4)


def _ranked(x: Tensor, w: Tensor) -> Tensor:
    return x.sort(0).values - x.amax(0)


PARTS = [
    _reversed,
    _transposed,
    _of_heads,
    _twice,
    _with_a_row,
    _in_place,
    _spread,
    _normal,
    _flat,
    _ranked,
]


@pytest.mark.parametrize("seed", range(6))
def test_chains_of_ops_have_the_cpus_values_and_gradients(seed: int) -> None:
    chosen = random.Random(seed)
    parts = [chosen.choice(PARTS) for _ in range(4)]
    differentiable = seed % 2 == 1
    drawn = torch.Generator().manual_seed(seed)
    w = torch.randn(8, 8, generator=drawn, dtype=torch.float64)

    def step(x: Tensor, device: str) -> list[Tensor]:
        leaf, weight = x.to(device), w.to(device)
        leaf.requires_grad_(differentiable)
        y = leaf
        for part in parts:
            y = part(y, weight)
        if not differentiable:
            return [y.detach().cpu()]
        (gradient,) = torch.autograd.grad(y.square().mean(), leaf)
        return [y.detach().cpu(), gradient.cpu()]

    for size in SIZES:
        x = torch.randn(size, 8, generator=drawn, dtype=torch.float64)
        for ours, expected in zip(step(x, "tpu"), step(x, "cpu"), strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-8)


def test_a_group_is_one_program() -> None:
    w = torch.randn(8, 8, device="tpu")

    def step(size: int) -> Tensor:
        return ((torch.ones(size, 8).to("tpu") @ w).tanh() * 2).sum(0).cpu()

    for size in SIZES * 2:
        step(size)
    _takes_over(step)
    assert _runs(lambda: step(7)) == (1, 4)


def test_programs_of_groups_are_compiled_while_the_script_goes_on(monkeypatch) -> None:
    """Until one is there its ops run one by one; a finer one takes over from a coarse one."""
    requests: list[Any] = []
    monkeypatch.setattr(
        background, "make_later", lambda request, *_, **__: requests.append(request)
    )
    w = torch.randn(8, 6)

    def step(size: int) -> None:
        x = torch.ones(size + 16, 8)  # 23 rows run as 64, later as 24
        actual = ((x.to("tpu") @ w.to("tpu")).tanh() * 2).sum(0)
        torch.testing.assert_close(actual.cpu(), ((x @ w).tanh() * 2).sum(0))

    def asked() -> list[Callable[[], None]]:
        made = [request for request in requests if request.func.__name__ == "_make"]
        return [request for request in made if len(request.args[0].nodes) > 1]

    for size in SIZES * 2:
        if size != 7:
            step(size)
    assert _runs(lambda: step(7)) == (4, 4)
    (coarse,) = asked()
    coarse()
    _takes_over(step)
    assert _runs(lambda: step(7)) == (1, 4)
    for _ in range(8):
        if asked() == [coarse]:
            step(7)
    assert _runs(lambda: step(7)) == (1, 4)
    asked()[1]()
    assert _runs(lambda: step(7)) == (1, 4)
    assert len(asked()) == 2


def _pairs(later: Callable[[int], int]) -> Sequence[tuple[int, int]]:
    return [(n, n + 3 if turn < 6 else later(n)) for turn, n in enumerate(SIZES * 2)]


@pytest.mark.parametrize("later", [lambda n: 2 * n, lambda n: 40 - n, lambda n: 4])
def test_sizes_that_no_longer_vary_together(later: Callable[[int], int]) -> None:
    for n, m in _pairs(later):
        x, y = torch.randn(n, 4), torch.randn(m, 4)
        expected = (x * 2).exp().sum(0) + (y * 3).tanh().sum(0)
        a, b = x.to("tpu"), y.to("tpu")
        actual = (a * 2).exp().sum(0) + (b * 3).tanh().sum(0)
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_sizes_of_nothing_and_one() -> None:
    for n in (*SIZES, 1, 0, 1, 12, 0, 9):
        x = torch.randn(n, 4)
        actual = (x.to("tpu") * 2).relu().cumsum(0).sum(0)
        expected = (x * 2).relu().cumsum(0).sum(0)
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_a_mistake_in_a_group_names_the_users_line() -> None:
    table = torch.randn(6, 4, device="tpu")

    def looked_up(size: int, row: int) -> Tensor:
        index = torch.full((size,), row).to("tpu")
        return F.embedding((index + 1) * 2, table).tanh().cpu()

    for size in SIZES:
        looked_up(size, 1)
    with pytest.raises(IndexError, match=r"out of range[\s\S]*test_eager_groups\.py.*looked_up"):
        looked_up(9, 5)
    assert looked_up(9, 0).shape == (9, 4)
