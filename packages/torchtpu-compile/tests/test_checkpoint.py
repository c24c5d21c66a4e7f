# SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing in a compiled graph."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torchtpu_compile import executable


def test_recomputed_dropout_has_the_mask_of_the_forward_pass() -> None:
    linear = nn.Linear(8, 8).to("tpu")

    def region(z: Tensor) -> Tensor:
        return F.dropout(linear(z).relu() + torch.rand_like(z), 0.5)

    def plain(x: Tensor) -> Tensor:
        return region(x.sin()).square()

    def checkpointed(x: Tensor) -> Tensor:
        return checkpoint(region, x.sin(), use_reentrant=False).square()

    results = []
    compiled = torch.compile(checkpointed, backend="tpu", fullgraph=True)
    for function in (plain, checkpointed, compiled):
        x = torch.linspace(-1, 1, 32, device="tpu").view(4, 8).requires_grad_()
        torch.manual_seed(5)
        y = function(x)
        torch.rand(3, device="tpu")  # the generator moves on before the backward pass
        y.sum().backward()
        results.append((y.detach().cpu(), x.grad.cpu()))
    for actual in results[1:]:
        for a, e in zip(actual, results[0], strict=True):
            torch.testing.assert_close(a, e)


def _executables(monkeypatch: pytest.MonkeyPatch) -> list[executable.Executable]:
    """The compiled graphs, as they are made."""
    made: list[executable.Executable] = []
    build = executable.Executable.__init__

    def note(self: executable.Executable, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(executable.Executable, "__init__", note)
    return made


def test_blocks_that_are_computed_again_are_not_kept(monkeypatch) -> None:
    blocks = nn.ModuleList(
        nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 32))
        for _ in range(3)
    ).to("tpu")
    x = torch.randn(512, 32, device="tpu")
    made = _executables(monkeypatch)

    def peak_and_gradient(again: bool) -> tuple[int, Tensor]:
        def model(hidden: Tensor) -> Tensor:
            for block in blocks:
                call = lambda x, block=block: x + block(x)  # noqa: E731
                hidden = checkpoint(call, hidden, use_reentrant=False) if again else call(hidden)
            return hidden.square().mean()

        compiled = torch.compile(model, backend="tpu", fullgraph=True)
        for _ in range(2):
            blocks.zero_grad()
            torch.tpu.synchronize()
            torch.tpu.reset_peak_memory_stats()
            before = torch.tpu.memory_allocated()
            compiled(x).backward()
            torch.tpu.synchronize()
        return torch.tpu.max_memory_allocated() - before, blocks[0][1].weight.grad.cpu()

    plain, expected = peak_and_gradient(False)
    kept, actual = peak_and_gradient(True)
    assert kept < 0.7 * plain
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)
    assert [len(one.programs) for one in made] == [1, 1, 1, 4]


def test_a_program_for_a_tpu_has_barriers_before_what_is_computed_again(monkeypatch) -> None:
    monkeypatch.setattr(executable, "_recomputing", lambda graph: set())  # as on a TPU
    made = _executables(monkeypatch)
    linear = nn.Linear(8, 8).to("tpu")

    def model(x: Tensor) -> Tensor:
        for _ in range(2):
            x = checkpoint(lambda y: linear(y).relu().sin(), x, use_reentrant=False)
        return x.sum()

    torch.compile(model, backend="tpu", fullgraph=True)(torch.ones(4, 8, device="tpu")).backward()
    forward, backward = (one.programs[0] for one in made)
    # The backward program begins with the second region, whose gradient is an operand.
    for program, barriers in ((forward, 0), (backward, 1)):
        shapes = [np.zeros(n.meta["val"].shape, np.float32) for n in program.interface.tensors]
        text = str(jax.make_jaxpr(program.function())(shapes))
        assert text.count("optimization_barrier") == barriers
