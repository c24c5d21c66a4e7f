# SPDX-License-Identifier: Apache-2.0
"""Compiled graphs are found in the cache without being lowered."""

from __future__ import annotations

import pytest
import torch
from torchtpu_core import _C, env_vars
from torchtpu_core.runtime import caching, programs


@pytest.fixture
def new_process(tmp_path, monkeypatch):
    """Forgets what a new process would not know; entries are kept in a directory of the test."""

    def forget() -> None:
        monkeypatch.setenv("TORCH_TPU_CACHE_DIR", str(tmp_path / "cache"))
        env_vars.reset()
        caching.reset()
        _C.clear_programs()
        torch._dynamo.reset()
        torch.tpu.reset_counters()

    forget()
    with torch.tpu.set_eager_mode("strict"):  # what Fused compiles depends on what it has met
        yield forget
    monkeypatch.undo()
    env_vars.reset()
    caching.reset()
    torch._dynamo.reset()


def _train(scale: float) -> list[float]:
    torch.manual_seed(0)
    weight = torch.linspace(-1, 1, 12).reshape(3, 4).to("tpu").requires_grad_()
    x = torch.linspace(0, 1, 8).reshape(2, 4).to("tpu")

    @torch.compile(backend="tpu")
    def loss_of(x, weight):
        return (torch.nn.functional.dropout(x @ weight.t(), 0.25).tanh() * scale).sum()

    loss = loss_of(x, weight)
    loss.backward()
    return [loss.item(), *weight.grad.flatten().tolist()]


def test_second_process_compiles_and_lowers_no_graph(new_process, monkeypatch) -> None:
    expected = _train(2.0)
    assert torch.tpu.counters()["compiles"] > 0
    new_process()
    monkeypatch.setattr(programs, "trace_function", None)
    assert _train(2.0) == expected
    assert torch.tpu.counters()["compiles"] == 0


def test_graph_with_another_constant_is_another_program(new_process) -> None:
    _train(2.0)
    new_process()
    other = _train(3.0)
    assert torch.tpu.counters()["compiles"] > 0
    assert other[0] == pytest.approx(1.5 * _train(2.0)[0])
