# SPDX-License-Identifier: Apache-2.0
"""The same calls give the same on CPU tensors, by gloo, and on tensors of the device."""

from __future__ import annotations

import importlib

import pytest
import torch

CASES = importlib.import_module("against_gloo").CASES
# float32 sums of four ranks in another order, squared in the gradients
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.mark.parametrize("name", CASES)
def test_collective_equals_that_of_gloo(four, name):
    if "compiled" in name:
        pytest.importorskip("torchtpu_compile", reason="torch.compile is torchtpu-compile's")
    for expected, found in four("against_gloo.both", name):
        assert len(expected) == len(found)
        for wanted, got in zip(expected, found, strict=True):
            if isinstance(wanted, torch.Tensor):
                torch.testing.assert_close(got, wanted, **CLOSE)
            else:
                assert got == wanted


@pytest.mark.parametrize("name", importlib.import_module("ddp_beside_gloo").CASES)
def test_data_parallel_training_equals_that_by_gloo(pair, name):
    # steps of 16 bits are rounded where gradients differ in their last bits
    rounded = {"rtol": 1e-2, "atol": 1e-3} if name in ("fp16_hook", "bf16_hook", "built_in") else {}
    for expected, found in pair("ddp_beside_gloo.both", name):
        for wanted, got in zip(expected, found, strict=True):
            torch.testing.assert_close(got, wanted, **({"rtol": 1e-4, "atol": 1e-5} | rounded))


def test_uneven_lists_are_gathered_and_reduced(four):
    for rank, (gathered, reduced) in enumerate(four("against_gloo.uneven_lists")):
        for other, part in enumerate(gathered):
            assert torch.equal(part, torch.full((other + 1, 2), float(other)))
        assert torch.equal(reduced, torch.full((rank + 1, 2), 4.0 * rank))
