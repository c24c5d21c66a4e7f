# SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing saves memory in Fused Eager, too, and changes no value."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchtpu_core import _C
from torchtpu_core.runtime import recomputation, trace_lowering, varying
from torchtpu_eager import fused

LAYERS, ROWS, WIDTH = 4, 512, 32


@pytest.fixture(autouse=True)
def _fused_without_a_thread():
    torch.tpu.init()
    before = fused.configure(background=False, sightings=1, patience=3)
    _C.forget_streams()
    varying.forget()
    with torch.tpu.set_eager_mode("fused"):
        yield
    fused.configure(**{name: getattr(before, name) for name in before.__slots__})


def _step(how: str, device: str = "tpu") -> Callable[[], Tensor]:
    """A training step of blocks, each checkpointed or not; returns a gradient."""
    torch.manual_seed(0)
    layers = (nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 8 * WIDTH), nn.GELU())
    blocks = nn.ModuleList(
        nn.Sequential(*layers, nn.Linear(8 * WIDTH, WIDTH)) for _ in range(LAYERS)
    )
    blocks.to(device)
    x = torch.randn(ROWS, WIDTH).to(device).requires_grad_()

    def step() -> Tensor:
        x.grad, hidden = None, x
        for block in blocks:
            if how == "plain":
                hidden = hidden + block(hidden)
            else:
                hidden = hidden + checkpoint(block, hidden, use_reentrant=how == "reentrant")
        hidden.square().mean().backward()
        return x.grad

    return step


def _peak(step: Callable[[], Tensor]) -> int:
    """Bytes above those at rest, once programs are known."""
    for _ in range(10):
        step().cpu()
    torch.tpu.reset_peak_memory_stats()
    before = torch.tpu.memory_allocated()
    step().cpu()
    return torch.tpu.max_memory_allocated() - before


@pytest.mark.parametrize("how", ["reentrant", "not reentrant"])
def test_blocks_computed_again_are_not_kept(how):
    step = _step(how)
    assert _peak(step) < _peak(_step("plain")) / 2
    torch.tpu.reset_counters()
    step().cpu()
    counters = torch.tpu.counters()
    assert counters["flushes"]["recomputation"] == LAYERS
    assert counters["programs"] == 0
    assert counters["runs"] <= LAYERS + 1
    torch.testing.assert_close(step().cpu(), _step(how, "cpu")(), rtol=1e-4, atol=1e-6)


def test_steps_run_as_programs_from_the_fifth_on():
    step, runs = _step("not reentrant"), []
    for _ in range(6):
        torch.tpu.reset_counters()
        step().cpu()
        runs.append(torch.tpu.counters()["runs"])
    assert runs[4:] == [LAYERS + 1] * 2


def test_gradients_of_gradients_are_no_recomputation():
    x = torch.randn(8, device="tpu", requires_grad=True)
    torch.tpu.reset_counters()
    (gradient,) = torch.autograd.grad(x.sin().sum(), x, create_graph=True)
    gradient.square().sum().backward()
    x.grad.cpu()
    assert "recomputation" not in torch.tpu.counters()["flushes"]


def test_gradients_of_functions_are_no_recomputation():
    x = torch.randn(8, device="tpu")
    torch.tpu.reset_counters()
    torch.func.vmap(torch.func.grad(lambda each: each.sin().square()))(x).cpu()
    assert "recomputation" not in torch.tpu.counters()["flushes"]


def test_one_program_of_both_has_a_barrier_before_what_is_computed_again():
    step = _step("not reentrant")
    seen = []
    lower = recomputation.hold_back

    def note(nodes, index, operands, results):
        lower(nodes, index, operands, results)
        names = [node["name"] for node in nodes[index:] if node.get("recomputed")]
        seen.append(names[0])

    expected = step().cpu()
    _C.cut_recomputation(False)  # as on a TPU, whose compiler respects barriers
    try:
        with mock.patch.object(trace_lowering.recomputation, "hold_back", note):
            for _ in range(3):
                actual = step().cpu()
    finally:
        _C.cut_recomputation(True)
    assert seen == ["aten::native_layer_norm"] * LAYERS
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-7)


def test_barrier_waits_for_what_was_computed_last():
    def function(x: jax.Array, gradient: jax.Array) -> jax.Array:
        (again,) = recomputation.late([x], [gradient])
        return jnp.sin(again) * gradient

    x = jnp.ones(3)
    text = str(jax.make_jaxpr(function)(x, x))
    assert "optimization_barrier a b" in text
