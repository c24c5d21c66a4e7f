# SPDX-License-Identifier: Apache-2.0
"""Ops that run again as at the last call of their signature, with operands that lie otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torchtpu_core import _C


@pytest.fixture(autouse=True, params=["strict", "fused, at once"])
def mode(request):
    if request.param == "strict":
        with torch.tpu.set_eager_mode("strict"):
            yield
        return
    fused = pytest.importorskip("torchtpu_eager.fused")
    torch.tpu.init()
    before = fused.configure(patience=1, sightings=1000)
    with torch.tpu.set_eager_mode("fused"):
        x = torch.ones(3, device="tpu")
        for length in range(3, 6):  # streams that are not known
            for _ in range(length):
                x = x * 0.5 + 1
            x.sum().item()
        yield
    fused.configure(**{name: getattr(before, name) for name in before.__slots__})


def _twice(function: Callable[..., torch.Tensor], *operands: torch.Tensor) -> None:
    """Calls before and after make the op's last run one on plain operands."""
    plain = [torch.rand(4, 4) for _ in operands]
    for case in (plain, operands, plain, operands):
        found = function(*(t.to("tpu") if t.device.type == "cpu" else t for t in case))
        expected = function(*(t.cpu() for t in case))
        torch.testing.assert_close(found.cpu(), expected)


def test_op_on_a_view_after_one_on_a_whole_tensor_reads_the_view() -> None:
    base = torch.arange(48.0).reshape(12, 4).to("tpu")
    _twice(torch.exp, base[4:8] / 50)
    _twice(torch.add, base[4:8], base[8:12])


def test_op_on_one_tensor_twice_after_one_on_two_gives_its_own_result() -> None:
    x = torch.rand(4, 4).to("tpu")
    _twice(torch.sub, x, x)


def test_op_on_a_tensor_written_by_another_shape_reads_its_bytes() -> None:
    flat = torch.arange(16.0).to("tpu") / 16
    _twice(torch.exp, flat.view(4, 4))


def test_op_on_a_transposed_tensor_after_a_plain_one_follows_its_strides() -> None:
    x = torch.arange(16.0).reshape(4, 4).to("tpu").t() / 16
    _twice(torch.exp, x)


def test_numbers_of_a_repeated_op_are_those_of_the_call() -> None:
    x = torch.arange(4.0).to("tpu")
    assert [(x * s).sum().item() for s in (2.0, 2.0, 3.0, 2.0)] == [12.0, 12.0, 18.0, 12.0]


@pytest.mark.parametrize("mode", ["strict"], indirect=True)
def test_repeated_op_counts_as_an_op_a_run_and_a_hit() -> None:
    x = torch.rand(3, 5).to("tpu")
    x.sin()
    before = torch.tpu.counters()
    for _ in range(5):
        x.sin()
    after = torch.tpu.counters()
    changed = [after[k] - before[k] for k in ("ops", "runs", "memory_hits", "compiles")]
    assert changed == [5, 5, 5, 0]


def test_repeated_op_keeps_the_device_of_its_operands() -> None:
    if torch.tpu.device_count() < 2:
        pytest.skip("one device")
    for index in (0, 1, 0, 1):
        x = torch.ones(3, device=f"tpu:{index}")
        assert (x + x.clone()).device.index == index
        assert (x + x.clone()).cpu().tolist() == [2.0, 2.0, 2.0]


def test_memory_of_dropped_results_of_a_repeated_op_is_given_back() -> None:
    x = torch.rand(64, 64).to("tpu")
    x.cos()
    torch.tpu.synchronize()
    held = torch.tpu.memory_allocated()
    for _ in range(20):
        x.cos()
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() == held


def _add_one(tensor: torch.Tensor) -> list[float]:
    tensor.add_(1)
    return tensor.cpu().flatten()[:3].tolist()


def test_write_of_a_view_after_one_of_a_whole_tensor_leaves_the_rest() -> None:
    base = torch.zeros(128, 64).to("tpu")
    for _ in range(3):
        assert _add_one(torch.zeros(64, 64).to("tpu")) == [1.0] * 3
        base[64:].add_(1)
    assert base[:64].abs().sum().item() == 0
    assert base[64:].sum().item() == 3 * 64 * 64


def test_repeated_write_is_seen_through_a_view() -> None:
    x = torch.zeros(64, 64).to("tpu")
    for step in range(4):
        held = x.detach()
        assert _add_one(x) == [step + 1.0] * 3
        assert held.cpu()[0, 0].item() == step + 1.0, "a view sees the write"


@pytest.mark.parametrize("mode", ["strict"], indirect=True)
def test_repeated_write_takes_the_memory_it_replaces() -> None:
    x = torch.zeros(64, 64).to("tpu")
    y = torch.ones(64, 64).to("tpu")
    x.add_(y)
    before = torch.tpu.counters()["donated_bytes"]
    for _ in range(5):
        x.add_(y)
    assert torch.tpu.counters()["donated_bytes"] - before == 5 * x.nbytes
    assert x.sum().item() == 6 * 64 * 64


def test_repeated_write_never_takes_the_memory_of_an_array_that_is_held() -> None:
    x = torch.zeros(64, 64).to("tpu")
    y = torch.ones(64, 64).to("tpu")
    x.add_(y)
    x.add_(y)
    array = _C.array_of(x)
    x.add_(y)
    x.add_(y)
    assert float(array[0, 0]) == 2.0
    assert x[0, 0].item() == 4.0


def test_repeated_write_of_another_operand_than_the_written_one() -> None:
    a, b = torch.rand(64, 64).to("tpu"), torch.rand(64, 64).to("tpu")
    out = torch.empty(64, 64).to("tpu")
    for _ in range(3):
        torch.sub(a, b, out=out)
        torch.sub(a, b, out=a)
        expected = out.cpu()
        assert torch.equal(a.cpu(), expected)


def test_repeated_out_of_another_size_is_resized() -> None:
    a = torch.rand(4, 4).to("tpu")
    for _ in range(3):
        out = torch.empty(0).to("tpu")
        torch.sin(a, out=out)
        torch.testing.assert_close(out.cpu(), a.cpu().sin())


def test_repeated_op_writes_the_buffers_it_mutates() -> None:
    def run(device: str) -> torch.Tensor:
        layer = torch.nn.BatchNorm1d(8).to(device)
        x = torch.linspace(0, 1, 32).reshape(4, 8).to(device)
        for _ in range(4):
            layer(x)
        return torch.stack([layer.running_mean, layer.running_var]).cpu()

    torch.testing.assert_close(run("tpu"), run("cpu"))


def test_views_that_lie_elsewhere_read_their_own_places() -> None:
    base = torch.arange(64.0).reshape(4, 4, 4) / 64
    x = base.to("tpu")
    for i in (0, 0, 1, 1, 3, 0):  # the same signature and value, at other places
        torch.testing.assert_close(x[i].exp().cpu(), base[i].exp())
        torch.testing.assert_close(x[:, i].exp().cpu(), base[:, i].exp())
        torch.testing.assert_close(x[i].t().add(x[0, i]).cpu(), base[i].t().add(base[0, i]))
    for s in (2.0, 2.0, 3.0):  # beside numbers of the call
        torch.testing.assert_close((x[1] * s).cpu(), base[1] * s)
    diagonals = [x[i].diagonal() for i in (0, 0, 2, 2)]  # no box: element by element
    for found, i in zip(diagonals, (0, 0, 2, 2), strict=True):
        torch.testing.assert_close(found.exp().cpu(), base[i].diagonal().exp())
