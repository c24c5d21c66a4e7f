# SPDX-License-Identifier: Apache-2.0
"""Fused Eager: one program per step, op by op until it is there, the same values."""

from __future__ import annotations

import inspect
import os
import threading

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torchtpu_core import _C
from torchtpu_core.errors import DeferredIndexError
from torchtpu_core.runtime import compiling, groups, varying
from torchtpu_eager import fused


@pytest.fixture(autouse=True)
def _fused_without_a_thread():
    torch.tpu.init()
    before = fused.configure(background=False, sightings=1, patience=3, max_ops=4096)
    _C.forget_streams()
    varying.forget()
    with torch.tpu.set_eager_mode("fused"):
        yield
    fused.configure(**{name: getattr(before, name) for name in before.__slots__})


def _trainer(device: str, width: int = 24):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, 4))
    x, y = torch.randn(16, 8).to(device), torch.randint(0, 4, (16,)).to(device)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def _runs(function) -> tuple[int, int]:
    torch.tpu.reset_counters()
    function()
    counters = torch.tpu.counters()
    return counters["runs"], counters["programs"]


def test_training_step_runs_as_one_program_without_compiling():
    step = _trainer("tpu", width=25)
    for _ in range(6):
        step()
    assert _runs(step) == (1, 0)


@pytest.fixture
def _a_program_per_size(monkeypatch) -> None:
    """As without torchtpu-compile, which knows how to run at padded sizes."""
    monkeypatch.setattr(varying, "sizes_seen", lambda description: ())
    monkeypatch.setattr(groups, "_found", lambda nodes, rows: [])


def _threads_that_compile(monkeypatch, step) -> list[str]:
    threads = []
    compile_function = compiling.compile_function

    def noting(*args):
        threads.append(threading.current_thread().name)
        return compile_function(*args)

    with monkeypatch.context() as patch:
        patch.setattr(compiling, "compile_function", noting)
        step()
    return threads


def test_ops_of_a_new_stream_are_compiled_side_by_side_and_none_in_vain(monkeypatch):
    fused.configure(at_first_sight=0)
    with torch.tpu.set_eager_mode("strict"):
        _trainer("tpu", width=29)()  # what does not depend on the width
        wanted = len(_threads_that_compile(monkeypatch, _trainer("tpu", width=31)))
    threads = _threads_that_compile(monkeypatch, _trainer("tpu", width=33))
    assert len(threads) == wanted
    beside = [name for name in threads if name.startswith("torchtpu-compile_")]
    assert len(beside) > wanted // 2
    if len(os.sched_getaffinity(0)) > 1:
        assert len(set(beside)) > 1


def test_op_that_cannot_be_compiled_beside_others_fails_at_its_own_line(monkeypatch):
    fused.configure(at_first_sight=0)
    x = torch.ones(3, 37, device="tpu")
    compile_function = compiling.compile_function

    def refusing(function, avals, donated, name):
        if "digamma" in name:
            raise RuntimeError("no such program")
        return compile_function(function, avals, donated, name)

    monkeypatch.setattr(compiling, "compile_function", refusing)
    y = x.exp().log1p()
    bad, line = y.digamma(), inspect.currentframe().f_lineno
    with pytest.raises(RuntimeError, match="no such program") as raised:
        torch.tpu.synchronize()
    assert f"{__file__}:{line}" in str(raised.value)
    with pytest.raises(RuntimeError):
        bad.cpu()
    assert_close(y.cpu(), torch.ones(3, 37).exp().log1p())


def test_training_losses_equal_cpus_from_first_step_to_fused_ones():
    on_tpu, on_cpu = _trainer("tpu"), _trainer("cpu")
    torch.testing.assert_close(
        [on_tpu() for _ in range(10)], [on_cpu() for _ in range(10)], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("padding_idx", [None, 3])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_of_one_size_have_cpus_values_and_gradients(mode, padding_idx):
    generator = torch.Generator().manual_seed(0)
    host, index = torch.randn(9, 4, generator=generator), torch.arange(30).reshape(6, 5) % 9

    def bags(device: str) -> tuple[torch.Tensor, torch.Tensor]:
        table = host.to(device).requires_grad_()
        out = nn.functional.embedding_bag(
            index.to(device), table, mode=mode, padding_idx=padding_idx
        )
        (out * out).sum().backward()
        return out.detach().cpu(), table.grad.cpu()

    for _ in range(3):
        on_tpu = bags("tpu")
    assert_close(on_tpu, bags("cpu"))


def test_stream_met_once_is_not_compiled_and_met_twice_is():
    fused.configure(at_first_sight=0)
    x = torch.ones(3, 7, device="tpu")
    x.sum().item()

    def chain():
        return ((x * 2 + 1).sin() - 3).sum().item()

    chain()
    _, compiles_at_second = _runs(chain)
    assert compiles_at_second == 1
    assert _runs(chain) == (1, 0)


def test_streams_that_never_repeat_run_at_once_after_patience():
    x = torch.ones(5, device="tpu")
    for length in range(3, 9):
        y = x
        for _ in range(length):
            y = y + 1
        assert y.tolist() == [1.0 + length] * 5
    torch.tpu.reset_counters()
    y = x + 1 + 1  # not read: in a deferring state nothing would run
    assert torch.tpu.counters()["runs"] == 2


def test_stream_that_ran_at_once_is_known_when_it_comes_back():
    x = torch.ones(6, device="tpu")

    def chain(length: int) -> torch.Tensor:
        y = x
        for _ in range(length):
            y = (y * 0.5).add_(1)
        return y

    for length in range(2, 8):
        assert_close(chain(length).cpu(), torch.full((6,), 2 - 0.5**length))
    runs, programs = _runs(lambda: chain(9))
    assert (runs, programs) == (18, 0)  # not read: in a deferring state nothing would run
    torch.tpu.synchronize()
    assert chain(9).tolist() == [2 - 0.5**9] * 6  # the second time: deferring comes back
    assert _runs(lambda: chain(9)) == (0, 0)
    torch.tpu.synchronize()


@pytest.mark.usefixtures("_a_program_per_size")
def test_streams_of_new_sizes_stay_deferred_so_that_their_ops_are_compiled_together(monkeypatch):
    def step(size: int) -> None:
        x = torch.ones(size, 3, device="tpu")
        assert (x.exp() * 2).sin().sum().isfinite().item()

    for size in range(201, 207):
        step(size)
    threads = _threads_that_compile(monkeypatch, lambda: step(207))
    assert len(threads) > 2
    assert all(name.startswith("torchtpu-compile_") for name in threads)


@pytest.mark.usefixtures("_a_program_per_size")
def test_new_sizes_after_streams_that_ran_at_once_are_compiled_together_again(monkeypatch):
    def step(size: int, rounds: int) -> None:
        x = torch.ones(size, 3, device="tpu")
        for _ in range(rounds):
            x = x.cos().exp()
        assert (x * 3).sum().isfinite().item()

    for rounds in range(2, 8):
        step(211, rounds)  # nothing to compile after the first: ops run at once
    first, second = (
        _threads_that_compile(monkeypatch, lambda size=size: step(size, 3)) for size in (212, 213)
    )
    assert not any(name.startswith("torchtpu-compile_") for name in first)
    assert all(name.startswith("torchtpu-compile_") for name in second)
    assert len(first) == len(second) > 2


def test_host_read_of_a_dead_result_costs_no_program_output():
    x = torch.arange(6.0, device="tpu")
    for _ in range(3):
        assert (x.exp().log() + 1).sum().item() == pytest.approx(21.0, abs=1e-4)


def test_flush_reasons_are_counted_and_explained():
    torch.tpu.reset_counters()
    x = torch.ones(4, device="tpu")
    (x + 1).tolist()
    (x + 2).cos()
    torch.tpu.synchronize()
    flushes = torch.tpu.counters()["flushes"]
    assert flushes["host read"] >= 1
    assert flushes["synchronize"] >= 1
    last = torch.tpu.explain().flushes[-1]
    assert last.reason == "synchronize"
    assert last.line.startswith(f"{__file__}:")


def test_recompile_is_explained_by_the_op_that_differs():
    for size in (11, 11, 12, 12):
        x = torch.ones(size, device="tpu")
        ((x + 1) * 2).sum().item()
    event = torch.tpu.explain().compiles[-1]
    assert "float32[12]" in event.difference
    assert "float32[11]" in event.difference
    assert f"{__file__}:" in event.difference


def test_op_limit_cuts_the_trace():
    fused.configure(max_ops=10)
    torch.tpu.reset_counters()
    x = torch.zeros((), device="tpu")
    for _ in range(35):
        x = x + 1
    assert x.item() == 35.0
    assert torch.tpu.counters()["flushes"]["op limit"] >= 3


def test_memory_held_by_pending_work_is_bounded():
    fused.configure(max_held_bytes=1 << 20)
    torch.tpu.reset_counters()
    total = torch.zeros(256, 256, device="tpu")
    for _ in range(24):
        total = total + torch.ones(256, 256).to("tpu")  # 256 KiB each, held by the trace alone
    assert total[0, 0].item() == 24.0
    assert torch.tpu.counters()["flushes"]["memory limit"] >= 2


def test_index_error_names_the_line_of_the_op():
    x = torch.arange(4.0, device="tpu")
    index = torch.tensor([9], device="tpu")
    line = inspect.currentframe().f_lineno + 1
    y = x[index] + 1
    with pytest.raises(DeferredIndexError, match=rf"test_fused.py:{line} in "):
        y.sum().item()


def test_error_found_at_the_flush_names_the_line_and_spares_the_rest():
    lib = torch.library.Library("fusedtest", "FRAGMENT")
    lib.define("broken(Tensor x) -> Tensor")
    lib.impl("broken", lambda x: torch.empty_like(x), "Meta")
    from torchtpu_core.lowering.table import native
    from torchtpu_core.runtime import startup, tables

    def broken(x):
        raise NotImplementedError("this op cannot be lowered")

    row = native("fusedtest::broken", broken)
    tables.add([row], "test")
    startup.register(row)
    x = torch.ones(3, device="tpu")
    line = inspect.currentframe().f_lineno + 1
    bad = torch.ops.fusedtest.broken(x)
    worse = bad + 1
    good = x * 5
    with pytest.raises(NotImplementedError, match=rf"test_fused.py:{line} in "):
        torch.tpu.synchronize()
    assert good.tolist() == [5.0, 5.0, 5.0]
    with pytest.raises(RuntimeError, match="no value"):
        worse.tolist()


def test_random_ops_draw_the_same_in_strict_and_fused():
    def draw(mode: str) -> list[torch.Tensor]:
        torch.manual_seed(7)
        with torch.tpu.set_eager_mode(mode):
            x = torch.rand(5, device="tpu")
            y = torch.nn.functional.dropout(torch.ones(9, device="tpu"), 0.5)
            return [x.cpu(), (torch.randn(4, device="tpu") + x[:4]).cpu(), y.cpu()]

    for _ in range(3):
        for a, b in zip(draw("fused"), draw("strict"), strict=True):
            assert torch.equal(a, b)


def test_in_place_chains_and_views_alias_as_on_cpu():
    def program(device: str) -> torch.Tensor:
        x = torch.arange(24.0).to(device).view(4, 6)
        row, column = x[1], x[:, 2]
        row.mul_(2)
        column.add_(row[2].clone())
        x.t()[3:5].zero_()
        row[0] = column.sum()
        return x

    for _ in range(4):
        assert_close(program("tpu").cpu(), program("cpu"))


def test_hook_that_reads_a_gradient_mid_backward_sees_its_value():
    def run(device: str) -> tuple[float, torch.Tensor]:
        seen = []
        w = torch.ones(3, device=device, requires_grad=True)
        h = w * 3
        h.register_hook(lambda grad: seen.append(grad.sum().item()))
        (h * h).sum().backward()
        return seen[0], w.grad.cpu()

    for _ in range(3):
        (a, grad_a), (b, grad_b) = run("tpu"), run("cpu")
        assert a == pytest.approx(b)
        assert_close(grad_a, grad_b)


def test_exception_in_the_middle_of_a_step_leaves_the_tensors_usable():
    x = torch.ones(3, device="tpu")
    y = x * 2
    with pytest.raises(RuntimeError, match=r"size|shape"):
        y + torch.ones(4, device="tpu")
    assert (y + 1).tolist() == [3.0, 3.0, 3.0]


def test_results_that_die_in_a_reference_cycle_add_no_program():
    x = torch.ones(4, device="tpu")

    def step(keep: list) -> float:
        h = x * 3
        keep.append(h)
        return (h + 1).sum().item()

    for _ in range(4):
        step([])
    kept: list = []
    step(kept)
    step(kept)  # a program that hands out h as well
    _, compiles = _runs(lambda: step([]))
    assert compiles == 0


def test_leaving_fused_runs_what_is_pending():
    x = torch.ones(2, device="tpu")
    with torch.tpu.set_eager_mode("fused"):
        y = x + 41
    with torch.tpu.set_eager_mode("strict"):
        torch.tpu.reset_counters()
        assert y.tolist() == [42.0, 42.0]
        assert torch.tpu.counters()["runs"] == 0


def test_unknown_option_lists_the_known_ones():
    with pytest.raises(TypeError, match="max_ops"):
        fused.configure(max_op=3)
    with pytest.raises(ValueError, match="at least 1"):
        fused.configure(patience=0)


def test_programs_are_compiled_in_the_background_and_take_over():
    fused.configure(background=True)
    step = _trainer("tpu", width=26)
    losses = [step() for _ in range(6)]
    torch.tpu.wait_for_compiles()
    losses += [step() for _ in range(2)]
    assert _runs(step) == (1, 0)
    reference = _trainer("cpu", width=26)
    torch.testing.assert_close(losses, [reference() for _ in range(8)], rtol=1e-5, atol=1e-6)


def test_body_of_a_loop_becomes_a_program_however_often_it_goes_round():
    fused.configure(max_ops=256)
    w = torch.eye(8, device="tpu") / 2

    def loop(rounds: int) -> float:
        x = torch.ones(8, 8, device="tpu")
        for _ in range(rounds):
            x = torch.tanh(x @ w + 1)
        return x.sum().item()

    expected = torch.ones(8, 8)
    for _ in range(400):
        expected = torch.tanh(expected @ (torch.eye(8) / 2) + 1)
    for rounds in (400, 400, 390, 380):
        assert loop(rounds) == pytest.approx(expected.sum().item(), rel=1e-5)
    torch.tpu.reset_counters()
    loop(407)  # a number of rounds that was never seen
    counters = torch.tpu.counters()
    assert counters["flushes"]["loop"] >= 10
    assert counters["fused_ops"] > 0.8 * counters["ops"]


def test_a_new_stream_run_op_by_op_donates_as_strict_does():
    fused.configure(sightings=9)
    x = torch.ones(64, 67, device="tpu")
    torch.tpu.synchronize()
    torch.tpu.reset_counters()
    x.mul_(3)
    y = x + 1
    torch.tpu.synchronize()
    assert torch.tpu.counters()["donated_bytes"] == x.nbytes
    assert_close(y.cpu(), torch.full((64, 67), 4.0))
