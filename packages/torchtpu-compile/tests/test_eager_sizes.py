# SPDX-License-Identifier: Apache-2.0
"""Fused Eager at padded sizes: scripts whose sizes vary, and which calls are padded."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchtpu_compile import eager_sizes
from torchtpu_compile.open_op import OpenOps
from torchtpu_compile.padded_call import PaddedCall
from torchtpu_core import _C
from torchtpu_core.runtime import varying

#: Two sizes have programs of their own; all that follow lie in one bucket.
SIZES = (3, 9, 5, 12, 7, 14, 11, 6, 13, 10)

pytestmark = pytest.mark.usefixtures("compiles")


def test_layers_of_several_widths_keep_programs_of_their_own(monkeypatch) -> None:
    found = []
    monkeypatch.setattr(eager_sizes, "program", lambda *args: found.append(args))
    widths = [8, 24, 40, 56, 72, 88]
    model = nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(widths)))
    model.to("tpu")
    torch.tpu.synchronize()
    with torch.no_grad():
        x = torch.randn(4, 8)
        actual = model(x.to("tpu"))
    torch.tpu.synchronize()
    with torch.tpu.set_eager_mode("strict"):
        exact = model(x.to("tpu"))
    assert torch.equal(actual.cpu(), exact.cpu())
    assert not found


def test_a_second_process_that_finds_programs_of_streams_compiles_nothing(compiles) -> None:
    def run() -> int:
        before = compiles()
        for size in (9, 9, 5, 12, 7):
            (torch.erf(torch.ones(size, 31, device="tpu")) * 1.5).cosh()
            torch.tpu.synchronize()
            torch.tpu.wait_for_compiles()
        return compiles() - before

    assert run() > 0
    varying.forget()
    eager_sizes.forget()
    _C.forget_streams()
    _C.clear_programs()
    assert run() == 0


def test_smaller_sizes_run_with_more_room_until_they_come_often(compiles) -> None:
    def run(size: int) -> int:
        before = compiles()
        x = torch.linspace(-3, 3, 7 * size).view(size, 7)
        actual = torch.special.i1e(x.to("tpu"))
        torch.tpu.synchronize()
        torch.testing.assert_close(actual.cpu(), torch.special.i1e(x))
        return compiles() - before

    assert [run(size) for size in (60, 40, 50)] == [1, 1, 1]  # the third at up to 64
    assert sum(run(size) for size in range(2, 9)) == 0
    for size in (10, 11, 12, 13):  # now those up to 16 have come often
        run(size)
    torch.tpu.wait_for_compiles()
    run(5)
    (op,) = (op for op in eager_sizes._ops.values() if isinstance(op, OpenOps))
    assert op.count == 2


def test_small_sizes_that_grow_share_programs(compiles) -> None:
    def run(size: int) -> None:
        x = torch.linspace(-3, 3, 7 * size).view(size, 7)
        actual = torch.special.i1e(x.to("tpu"))
        torch.tpu.synchronize()
        torch.testing.assert_close(actual.cpu(), torch.special.i1e(x))

    for size in (9, 20, 30, 100, 200, 300, 500, 520, 1100):
        run(size)
    (op,) = (op for op in eager_sizes._ops.values() if isinstance(op, OpenOps))
    assert op.count == 2  # 512 rows, 2048 rows


def test_a_second_process_neither_lowers_nor_compiles_padded_programs(
    compiles: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> None:
        for size in SIZES:
            x = torch.arange(3.0 * size).view(size, 3)
            actual = torch.special.i0e(x.to("tpu")).sum(0)
            torch.tpu.synchronize()
            torch.testing.assert_close(actual.cpu(), torch.special.i0e(x).sum(0))

    run()
    varying.forget()
    eager_sizes.forget()
    _C.forget_streams()
    _C.clear_programs()
    before = compiles()
    monkeypatch.setattr(OpenOps, "_compile", None)
    run()
    assert compiles() == before
    assert any(isinstance(op, OpenOps) and op.count for op in eager_sizes._ops.values())


def test_small_sizes_that_come_often_get_programs_without_padding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def check(size: int) -> None:
        x = torch.arange(3.0 * size).view(size, 3)
        actual = F.softmax(x.to("tpu"), 0)
        torch.tpu.synchronize()
        torch.testing.assert_close(actual.cpu(), F.softmax(x, 0))

    def padded(call: PaddedCall) -> None:
        raise AssertionError("ran at padded sizes")

    for size in [*SIZES, 100] * 20:
        check(size)
    torch.tpu.wait_for_compiles()
    monkeypatch.setattr(PaddedCall, "executable", padded)
    for size in SIZES:
        check(size)
    with pytest.raises(AssertionError, match="ran at padded sizes"):
        check(100)  # whose least padding is 104


def test_strict_does_not_pad(compiles: Callable[[], int]) -> None:
    with torch.tpu.set_eager_mode("strict"):
        before = compiles()
        for size in SIZES:
            torch.erfinv(torch.rand(size, 3, device="tpu"))
        assert compiles() - before >= len(SIZES)


def test_an_index_out_of_range_names_the_users_line() -> None:
    table = torch.randn(6, 4, device="tpu")
    for size in SIZES:
        F.embedding(torch.zeros(size, dtype=torch.int64, device="tpu"), table)
        torch.tpu.synchronize()
    index = torch.full((8,), 9, device="tpu")
    with pytest.raises(
        IndexError, match=r"out of range(?!.*compiled graph)[\s\S]*test_eager_sizes"
    ):
        for size in (8, 8):
            F.embedding(index[:size], table)
            torch.tpu.synchronize()


@pytest.mark.slow
def test_calls_of_sizes_that_never_come_again_are_forgotten() -> None:
    x = torch.randn(120, 120, device="tpu")
    for rows, columns in itertools.product(range(2, 112), range(2, 112)):
        y = torch.tanh(x[:rows, :columns])
        torch.tpu.synchronize()
    assert sum(type(each) is PaddedCall for each in gc.get_objects()) < 9000
    torch.testing.assert_close(y.cpu(), torch.tanh(x.cpu()[:111, :111]), rtol=1e-4, atol=1e-5)


def test_draws_are_those_of_strict() -> None:
    def drawn(size: int) -> Tensor:
        torch.manual_seed(size)
        return F.dropout(torch.ones(size, 5, device="tpu"), 0.5)

    found = []
    for size in SIZES:
        found.append(drawn(size))
        torch.tpu.synchronize()
    with torch.tpu.set_eager_mode("strict"):
        for size, values in zip(SIZES, found, strict=True):
            assert torch.equal(values.cpu(), drawn(size).cpu())


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor] | None) -> Any:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        return self.out(y.transpose(1, 2).flatten(2)), (k, v)


def test_a_decoding_loop_with_a_growing_cache_compiles_few_programs(
    compiles: Callable[[], int],
) -> None:
    torch.manual_seed(0)
    model, x = _Attention(), torch.randn(1, 3, 16)

    def decode(device: str, tokens: int) -> list[float]:
        step, cache, found = x.to(device), None, []
        with torch.no_grad():
            for _ in range(tokens):
                y, cache = model.to(device)(step, cache)
                step = y[:, -1:].tanh()
                found.append(y[0, -1, 0].item())
        return found

    expected = decode("cpu", 60)
    decode("tpu", 5)
    before = compiles()
    actual = decode("tpu", 60)
    # Caches of 16 and 64 entries: joining and attention.
    assert compiles() - before <= 8
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("most_sites", [8192, 64])  # each call of an endless stream has a new one
def test_a_loop_that_never_stops_for_the_host_compiles_few_programs_too(
    compiles: Callable[[], int], monkeypatch: pytest.MonkeyPatch, most_sites: int
) -> None:
    monkeypatch.setattr(varying, "_MOST_SITES", most_sites)
    x = torch.rand(1, 4)

    def grown(device: str) -> Tensor:
        row, rows = x.to(device), x.to(device)
        for _ in range(200):
            rows = torch.cat([rows, row], 0)
            row = (rows.softmax(0) * rows).sum(0, keepdim=True)
        return rows.cpu()

    expected = grown("cpu")
    before = compiles()
    torch.testing.assert_close(grown("tpu"), expected, rtol=1e-4, atol=1e-5)
    # Four ops: sizes until the last 32 calls are the same twice, then buckets up to 256.
    assert compiles() - before <= 4 * (10 + 4)


def test_parameters_of_several_shapes_keep_programs_of_their_own(monkeypatch) -> None:
    found = []
    program = eager_sizes.program
    monkeypatch.setattr(
        eager_sizes,
        "program",
        lambda *args, **options: found.append(args) or program(*args, **options),
    )
    parameters = [torch.ones(3 + i % 5 * (i % 3 + 1), 4, device="tpu") for i in range(40)]
    for parameter in parameters:
        parameter.mul_(0.5).add_(1).sqrt_()
    torch.tpu.synchronize()
    assert not found


def test_training_on_batches_of_varying_length() -> None:
    def train(device: str) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Embedding(11, 8), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 11)
        )
        model.to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for size in SIZES * 2:
            tokens = torch.arange(2 * size).reshape(2, size).remainder(11).to(device)
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    torch.testing.assert_close(train("tpu"), train("cpu"), rtol=1e-4, atol=1e-5)


def test_op_of_varying_size_between_two_compiled_graphs() -> None:
    def counted(x: Tensor) -> Tensor:
        return (x * 2).bincount(minlength=6) + 1

    compiled = torch.compile(counted, backend="tpu", dynamic=True)
    before = dict(eager_sizes.reasons)
    for size in SIZES:
        x = torch.randint(0, 3, (size,))
        assert torch.equal(compiled(x.to("tpu")).cpu(), counted(x))
    assert dict(eager_sizes.reasons) == before, "ran at true sizes"


def test_element_of_a_tensor_of_varying_size_is_a_scalar() -> None:
    for size in SIZES:
        x = torch.arange(1.0, size + 1).sin()
        y = x.to("tpu")
        for i in (0, size - 1):
            assert bool(y[i] != torch.ceil(y[i])) == bool(x[i] != torch.ceil(x[i]))
        y[0].mul_(3)
        x[0].mul_(3)
        assert torch.equal(y.cpu(), x)


def test_ops_after_one_that_comes_seldom_need_no_programs(compiles: Callable[[], int]) -> None:
    """All that follows has new sites, on lines whose sizes are known to vary."""

    def step(rows: tuple[int, ...], device: str, is_rare: bool = False) -> Tensor:
        total = torch.zeros(3, device=device)
        if is_rare:
            total = total.sqrt()
        for count in rows:
            part = torch.arange(3.0 * count).view(count, 3).to(device)
            total = total + part.log1p().amax(0)
        return total

    torch.zeros(3, device="tpu").sqrt().cpu()  # a program of its own, not of the first stream's
    step((), "tpu", is_rare=True)
    for i in range(12):
        step((i + 17, 45 - i), "tpu")
        compiles()
    before = compiles()
    actual = step((33, 61), "tpu", is_rare=True)
    assert compiles() == before
    torch.testing.assert_close(actual.cpu(), step((33, 61), "cpu", is_rare=True))
