# SPDX-License-Identifier: Apache-2.0
"""Which results of an operator Fused Eager knows that nothing reads."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest
import torch
from torchtpu_core import _C
from torchtpu_core.runtime import trace_lowering
from torchtpu_eager import fused


@pytest.fixture(autouse=True)
def _fused_at_once():
    torch.tpu.init()
    before = fused.configure(background=False, sightings=1, patience=3)
    _C.forget_streams()
    with torch.tpu.set_eager_mode("fused"):
        yield
    fused.configure(**{name: getattr(before, name) for name in before.__slots__})


def _ignored(function: Callable[[], object]) -> set[int]:
    """The numbers of results that programs of a function leave unread."""
    seen = []
    known = trace_lowering.unread.results

    def note(numbers):
        seen.append(set(numbers))
        return known(numbers)

    torch.tpu.synchronize()
    with mock.patch.object(trace_lowering.unread, "results", note):
        for _ in range(3):
            function()
    assert seen  # something was lowered
    return set().union(*seen)


def test_result_that_is_neither_read_nor_kept_is_unread():
    x = torch.randn(3, 41, device="tpu")
    kept = []
    assert _ignored(lambda: (x.sin().max(1)[0] + 1).cpu()) == {1}
    assert _ignored(lambda: (x.cos().max(1)[1] + 1).cpu()) == {0}
    assert _ignored(lambda: kept.append(x.tan().max(1)) or kept[-1][0].cpu()) == set()


def test_assertion_holds_in_programs_although_nothing_reads_it():
    x = torch.arange(1.0, 5.0, device="tpu")

    def step(shift: float) -> float:
        torch._assert_async((x + shift > 0).all(), "a positive value")
        return (x * 2).sum().item()

    before = torch.tpu.counters()["fused_ops"]
    assert [step(0.0) for _ in range(6)] == [20.0] * 6
    assert torch.tpu.counters()["fused_ops"] > before
    with pytest.raises(RuntimeError, match=r"a positive value.*test_unread\.py:\d+"):
        step(-2.0)
