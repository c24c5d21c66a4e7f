# SPDX-License-Identifier: Apache-2.0
"""Property: random programs over views, writes and randomness give the same in all modes.

A program is a list of small steps on a handful of tensors; it runs on CPU and on `tpu` in
Debug, Strict and Fused (compiled at once, and as it comes). Random steps are compared
between the modes of `tpu` only: the CPU has a stream of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torchtpu_core import _C
from torchtpu_eager import fused

Tensors = list[torch.Tensor]
Step = tuple[str, int, int, int]


def _view(t: torch.Tensor, kind: int) -> torch.Tensor:
    views: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda t: t,
        lambda t: t[1],
        lambda t: t[:, 1:3],
        lambda t: t.t()[::2],
        lambda t: t.reshape(-1)[2:10].view(2, 4),
        lambda t: t[1:3, ::2],
        lambda t: t.diagonal(),
        lambda t: t.flip(0),
        lambda t: t.expand(2, 4, 4)[1],
    ]
    return views[kind % len(views)](t)


def _writable(t: torch.Tensor, kind: int) -> torch.Tensor:
    return _view(t, kind % 7)


STEPS: dict[str, Callable[[Tensors, int, int, int], Any]] = {
    "add": lambda ts, a, b, k: ts.append(ts[a] + ts[b] * (k + 1)),
    "sin": lambda ts, a, b, k: ts.append(torch.sin(ts[a]) - ts[b]),
    "matmul": lambda ts, a, b, k: ts.append(torch.tanh(ts[a] @ ts[b])),
    "softmax": lambda ts, a, b, k: ts.append(torch.softmax(ts[a], k % 2)),
    "mean": lambda ts, a, b, k: ts.append(ts[a] - _view(ts[b], k).mean()),
    "write": lambda ts, a, b, k: _writable(ts[a], k).mul_(0.5).add_(k),
    "fill": lambda ts, a, b, k: _writable(ts[a], k).fill_(k),
    "copy": lambda ts, a, b, k: _writable(ts[a], k).copy_(_writable(ts[b], k).clone()),
    "addview": lambda ts, a, b, k: _writable(ts[a], k).add_(_writable(ts[b], k).clone()),
    "set": lambda ts, a, b, k: ts[a].__setitem__((k % 4, b % 4), float(k)),
    "where": lambda ts, a, b, k: ts.append(torch.where(ts[a] > 0, ts[b], ts[a])),
    "masked": lambda ts, a, b, k: ts[a].masked_fill_(ts[b] > 1, float(k)),
    "cat": lambda ts, a, b, k: ts.append(torch.cat([ts[a][: k % 4], ts[b][k % 4 :]])),
    "clone": lambda ts, a, b, k: ts.append(ts[a].clone()),
    "alias": lambda ts, a, b, k: ts.append(ts[a].view(4, 4)),
    "drop": lambda ts, a, b, k: ts.pop() if len(ts) > 3 else None,
    "index": lambda ts, a, b, k: ts.append(ts[a][torch.tensor([k % 4, 0, 3, b % 4])]),
    "read": lambda ts, a, b, k: ts[a].sum().item(),
}
RANDOM: dict[str, Callable[[Tensors, int, int, int], Any]] = {
    "rand": lambda ts, a, b, k: ts.append(torch.rand_like(ts[a])),
    "normal_": lambda ts, a, b, k: _writable(ts[a], k).normal_(),
    "dropout": lambda ts, a, b, k: ts.append(torch.dropout(ts[a], 0.5, True)),
}


def _run(program: list[Step], device: str) -> Tensors:
    torch.manual_seed(3)
    tensors = [
        torch.linspace(-1, 1, 16).view(4, 4).to(device),
        torch.arange(16.0).view(4, 4).to(device) / 8,
        torch.eye(4).to(device),
    ]
    with torch.device(device):
        for name, a, b, k in program:
            step = STEPS.get(name) or RANDOM[name]
            step(tensors, a % len(tensors), b % len(tensors), k)
    return [t.cpu() for t in tensors]


def _in_modes(program: list[Step]) -> dict[str, Tensors]:
    results = {}
    for mode in ("debug", "strict"):
        with torch.tpu.set_eager_mode(mode):
            results[mode] = _run(program, "tpu")
    with torch.tpu.set_eager_mode("fused"):
        for name, sightings in (("fused at once", 0), ("fused", 1)):
            before = fused.configure(background=False, sightings=sightings)
            _C.forget_streams()
            results[name] = _run(program, "tpu")
            fused.configure(background=before.background, sightings=before.sightings)
    return results


def _assert_alike(results: dict[str, Tensors], expected: Tensors) -> None:
    for mode, tensors in results.items():
        for a, b in zip(tensors, expected, strict=True):
            torch.testing.assert_close(
                a, b, rtol=2e-5, atol=2e-5, msg=lambda text, mode=mode: f"{mode}: {text}"
            )


def _steps(names: list[str]) -> st.SearchStrategy[list[Step]]:
    small = st.integers(0, 8)
    return st.lists(st.tuples(st.sampled_from(names), small, small, small), min_size=1, max_size=9)


_QUICK = settings(
    max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@_QUICK
@given(_steps(list(STEPS)))
def test_programs_give_cpus_values_in_every_mode(program):
    expected = _run(program, "cpu")
    for mode, tensors in _in_modes(program).items():
        for a, b in zip(tensors, expected, strict=True):
            torch.testing.assert_close(
                a, b, rtol=2e-5, atol=2e-5, msg=lambda m, w=mode: f"{w}: {m}"
            )


@_QUICK
@given(_steps([*RANDOM, "write", "add", "copy", "alias"]))
def test_random_programs_draw_the_same_in_every_mode(program):
    results = _in_modes(program)
    for mode, tensors in results.items():
        for a, b in zip(tensors, results["strict"], strict=True):
            torch.testing.assert_close(
                a, b, rtol=2e-5, atol=2e-5, msg=lambda m, w=mode: f"{w}: {m}"
            )


@pytest.mark.slow
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(_steps(list(STEPS)))
def test_many_programs_give_cpus_values_in_every_mode(program):
    expected = _run(program, "cpu")
    for mode, tensors in _in_modes(program).items():
        for a, b in zip(tensors, expected, strict=True):
            torch.testing.assert_close(
                a, b, rtol=2e-5, atol=2e-5, msg=lambda m, w=mode: f"{w}: {m}"
            )
