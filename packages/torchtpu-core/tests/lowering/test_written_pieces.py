# SPDX-License-Identifier: Apache-2.0
"""Pieces of memory are written where they lie, unless what is written depends on the rest."""

from __future__ import annotations

import jax
import pytest
import torch
from torchtpu_core.runtime import programs


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch, strict_on_device_0: None) -> list[str]:
    """The operators of JAX in each program that is made."""
    texts: list[str] = []
    trace_function = programs.trace_function

    def noted(description):
        traced = trace_function(description)
        texts.append(str(jax.make_jaxpr(traced.function)(*traced.avals)))
        return traced

    monkeypatch.setattr(programs, "trace_function", noted)
    return texts


def test_pieces_of_fresh_memory_are_written_in_place(lowered):
    pieces = [torch.full((n,), float(n), device="tpu") for n in (17, 29, 41)]
    whole = torch.empty(2 * 87, device="tpu")
    lowered.clear()
    torch._foreach_copy_(list(whole.narrow(0, 87, 87).split([17, 29, 41])), pieces)
    (text,) = lowered
    assert text.count("dynamic_update_slice") == 3
    assert "select_n" not in text
    torch.testing.assert_close(whole[87:].cpu(), torch.cat([p.cpu() for p in pieces]))


def test_pieces_of_written_memory_are_changed_in_place(lowered):
    whole = torch.arange(37.0 * 3, device="tpu")
    expected = whole.cpu()
    torch._foreach_mul_(list(expected.split(37)), [2.0, 3.0, 4.0])
    lowered.clear()
    torch._foreach_mul_(list(whole.split(37)), [2.0, 3.0, 4.0])
    assert lowered[-1].count("dynamic_update_slice") == 3
    assert "select_n" not in lowered[-1]
    torch.testing.assert_close(whole.cpu(), expected)


def test_overlapping_pieces_are_changed_one_after_the_other(strict_on_device_0):
    expected = torch.arange(126.0)
    whole = expected.to("tpu")
    for t in (expected, whole):
        torch._foreach_mul_([t[start : start + 52] for start in (0, 37, 74)], [2.0, 3.0, 4.0])
    torch.testing.assert_close(whole.cpu(), expected)


def test_pieces_changed_by_numbers_and_tensors_in_one_call_equal_the_cpu(strict_on_device_0):
    found = []
    for device in ("cpu", "tpu"):
        whole = torch.linspace(1, 2, 111, device=device)
        others = [torch.linspace(i, i + 1, 37, device=device) for i in range(3)]
        torch._foreach_addcmul_(whole.split(37), others, others[::-1], [0.5, 2.0, 3.0])
        torch._foreach_lerp_(whole.split(37), others, 0.25)
        torch._foreach_pow_(whole.split(37), [1.0, 2.0, 0.5])
        torch._foreach_sqrt_(whole.split(37))
        found.append(whole.cpu())
    torch.testing.assert_close(*found)


def test_pieces_written_from_the_same_memory_keep_its_old_values_apart(lowered):
    whole = torch.arange(37.0 * 3, device="tpu")
    expected = whole.cpu()
    torch._foreach_add_(list(expected[:74].split(37)), [expected[74:], expected[74:]])
    lowered.clear()
    torch._foreach_add_(list(whole[:74].split(37)), [whole[74:], whole[74:]])
    assert "select_n" in lowered[-1]
    torch.testing.assert_close(whole.cpu(), expected)


@pytest.mark.parametrize("is_written", [False, True])
def test_pieces_that_one_operator_writes_take_memory_for_one_version(
    strict_on_device_0, is_written
):
    pieces = [torch.full((1 << 14,), float(n), device="tpu") for n in range(8)]
    whole = torch.empty(1 << 18, device="tpu")
    if is_written:
        whole.zero_()
    for _ in range(2):
        torch.tpu.synchronize()
        before = torch.tpu.memory_allocated()
        torch.tpu.reset_peak_memory_stats()
        torch._foreach_copy_(list(whole[: 1 << 17].split(1 << 14)), pieces)
        torch.tpu.synchronize()
        assert torch.tpu.max_memory_allocated() - before <= 2 * whole.nbytes
    found = whole[: 1 << 17].view(8, -1).cpu()
    assert torch.equal(found, torch.arange(8.0)[:, None].expand(8, 1 << 14))
