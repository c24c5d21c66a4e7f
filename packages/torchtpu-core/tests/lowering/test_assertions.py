# SPDX-License-Identifier: Apache-2.0
"""Assertions on the device: what a script states of its values, without waiting for them."""

from __future__ import annotations

import pytest
import torch

_VALUES = [True, False, [0], [[2.5]], 0.0, 0j, [1, 1], []]


@pytest.mark.parametrize("value", _VALUES, ids=str)
@pytest.mark.parametrize("words", [(), ("weights are positive",)], ids=["unnamed", "named"])
def test_assertion_holds_or_fails_as_on_cpu(value: object, words: tuple[str, ...]) -> None:
    def outcome(device: str) -> str:
        try:
            torch._assert_async(torch.tensor(value, device=device), *words)
            torch.tpu.synchronize()
        except RuntimeError as error:
            return str(error).partition(" (called at")[0]
        return "holds"

    assert outcome("tpu") == outcome("cpu")


def test_assertion_neither_waits_for_the_device_nor_runs_on_the_host() -> None:
    torch.tpu.synchronize()
    before = torch.tpu.counters()
    torch._assert_async((torch.arange(4, device="tpu") >= 0).all())
    after = torch.tpu.counters()
    assert after["flushes"].get("host read", 0) == before["flushes"].get("host read", 0)
    assert after["fallbacks"] == before["fallbacks"]
    torch.tpu.synchronize()


def test_failed_assertion_names_its_line() -> None:
    torch._assert_async(torch.zeros((), device="tpu"), "a loss")
    with pytest.raises(RuntimeError, match=r"a loss \(called at .*test_assertions\.py:\d+"):
        torch.tpu.synchronize()
