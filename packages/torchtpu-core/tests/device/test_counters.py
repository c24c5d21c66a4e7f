# SPDX-License-Identifier: Apache-2.0
"""Programs are compiled once: loops over indices, offsets and numbers reuse them."""

from __future__ import annotations

import pytest
import torch
from torchtpu_core.lowering import linalg
from torchtpu_core.runtime import compiling, fallbacks, fresh_zeros


def _compiles(work):
    torch.tpu.reset_counters()
    work()
    torch.tpu.synchronize()
    return torch.tpu.counters()["programs"]


def _write_each(x):
    for i in range(16):
        x[i] = 1


@pytest.mark.parametrize(
    "loop",
    [
        lambda x: [x[i].cpu() for i in range(16)],
        lambda x: [x[i] + 1 for i in range(16)],
        lambda x: [x[i : i + 4] * 2 for i in range(16)],
        lambda x: [x[i : i + 4].sum() for i in range(12)],
        _write_each,
        lambda x: [x + float(i) for i in range(16)],
        lambda x: [x * i for i in range(2, 18)],
        lambda x: [x.clamp(min=0.1 * i) for i in range(16)],
        lambda x: [x.index_select(0, torch.tensor([i], device="tpu")) for i in range(16)],
        lambda x: [torch.full((5,), float(i), device="tpu") for i in range(16)],
        lambda x: [x.masked_fill(x > 0, float(i)) for i in range(16)],
    ],
)
def test_loop_of_16_compiles_at_most_two_programs(loop):
    x = torch.zeros(20, 3, device="tpu")
    assert _compiles(lambda: loop(x)) <= 2


def test_values_of_a_loop_are_right():
    x = torch.arange(20.0, device="tpu")
    assert [x[i].item() for i in range(16)] == [float(i) for i in range(16)]
    assert [(x[i : i + 4] + i).tolist() for i in range(16)] == [
        [float(2 * i + k) for k in range(4)] for i in range(16)
    ]
    y = torch.zeros(16, device="tpu")
    for i in range(16):
        y[i] = i
    assert y.tolist() == [float(i) for i in range(16)]


def test_random_op_in_a_loop_compiles_once():
    assert _compiles(lambda: [torch.rand(7, device="tpu") for _ in range(8)]) <= 1


def test_second_run_compiles_nothing():
    x = torch.ones(5, 7, device="tpu")
    work = lambda: (x @ x.T).softmax(0).sum()  # noqa: E731
    assert _compiles(work) > 0
    assert _compiles(work) == 0


def test_training_loop_settles_after_two_steps():
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 1))
    model.to("tpu")
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        optimizer.zero_grad()
        model(torch.ones(2, 3, device="tpu")).mean().backward()
        optimizer.step()

    step()
    step()
    assert _compiles(step) == 0


def test_another_device_needs_its_own_program_and_the_same_values():
    results = [(torch.ones(5, device=f"tpu:{i}") * 3).tolist() for i in range(2)]
    assert results[0] == results[1]


def test_counters_count_ops_and_runs():
    x = torch.ones(4, device="tpu")
    torch.tpu.reset_counters()
    x + 1
    x + 1
    counts = torch.tpu.counters()
    assert counts["ops"] == counts["runs"] == 2
    assert counts["memory_hits"] >= 1


def test_views_record_no_op():
    x = torch.ones(4, 4, device="tpu")
    torch.tpu.reset_counters()
    x.t()[1:].unsqueeze(0).expand(2, 3, 4)
    assert torch.tpu.counters()["ops"] == 0


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_fallback_is_counted_by_overload():
    library = torch.library.Library("torchtpu_test_counters", "DEF")
    library.define("host_only(Tensor x) -> Tensor")
    library.impl("host_only", lambda x: x + 1, "CPU")
    torch.tpu.reset_counters()
    y = torch.ops.torchtpu_test_counters.host_only(torch.ones(2, device="tpu"))
    assert y.device.type == "tpu"
    assert y.tolist() == [2.0, 2.0]
    assert torch.tpu.counters()["fallbacks"] == {"torchtpu_test_counters::host_only": 1}


@pytest.mark.parametrize("form", ["aten::geqrf", "aten::geqrf.a", "aten::linalg_ldl_solve.out"])
def test_fallback_of_every_form_gives_the_reason_of_the_row(form: str) -> None:
    base = form.partition(".")[0]
    row = next(r for r in linalg.TABLE if r.overload == base)
    assert fallbacks.reason_of(form) == row.reason


def test_zeros_of_a_new_shape_compile_nothing():
    made = []

    def work():
        made.append(torch.zeros(3, 311, dtype=torch.bfloat16, device="tpu"))
        made.append(torch.zeros_like(torch.empty(313, 3, device="tpu").t()))
        torch.accelerator.synchronize()

    assert _compiles(work) == 0
    for tensor in made:
        assert torch.equal(tensor.cpu(), torch.zeros(tensor.shape, dtype=tensor.dtype))
    assert made[1].stride() == (1, 3)


def test_zeros_that_are_made_again_and_again_get_a_program(monkeypatch):
    monkeypatch.setattr(fresh_zeros, "_COPIED_BYTES", 3 * 317 * 4)
    began = compiling.compiled.total()
    for count in (0, 1, 1):
        zeros = torch.zeros(3, 317, device="tpu")
        assert torch.equal(zeros.cpu(), torch.zeros(3, 317))
        assert compiling.compiled.total() - began == count
