# SPDX-License-Identifier: Apache-2.0
"""A tensor prints as on the CPU, and makes no programs for it."""

from __future__ import annotations

import pytest
import torch

INF, NAN = float("inf"), float("nan")
_BASE = torch.linspace(-3.0, 4.0, 24).reshape(4, 6)
TENSORS = {
    "floats": _BASE,
    "whole": torch.arange(12.0).reshape(3, 4),
    "wide range": torch.tensor([1e-7, 3.0, 1e9]),
    "not finite": torch.tensor([[INF, -1.5], [NAN, -INF]]),
    "only zeros": torch.zeros(2, 3),
    "a number": torch.tensor(2.5),
    "empty": torch.empty(0, 3),
    "transposed": _BASE.t(),
    "a part": _BASE[1:3, ::2],
    "many rows": torch.linspace(0.0, 1.0, 3000).reshape(300, 10),
    "a long row": torch.linspace(0.0, 1.0, 2000, dtype=torch.float64),
    "bfloat16": _BASE.to(torch.bfloat16),
    "many of half": torch.linspace(0.0, 1.0, 1500).half(),
    "float8": _BASE.to(torch.float8_e5m2),
    "complex": torch.complex(_BASE, _BASE.flip(0)),
    "integers": torch.arange(6),
    "booleans": _BASE > 0,
}


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("mode", ["fused", "strict"])
def test_text_is_the_cpus_and_needs_no_program(name: str, mode: str) -> None:
    tensor = TENSORS[name]
    with torch.tpu.set_eager_mode(mode):
        moved = tensor.to("tpu")
        torch.tpu.synchronize()
        before = torch.tpu.counters()["programs"]
        text = repr(moved)
        assert torch.tpu.counters()["programs"] == before
    # The device may make PyTorch break the line.
    assert "".join(text.split()).replace(",device='tpu:0'", "") == "".join(repr(tensor).split())


def test_other_masks_stay_on_their_device() -> None:
    moved = _BASE.to("tpu")
    with pytest.raises(RuntimeError, match="two devices"):
        torch.masked_select(moved, _BASE > 0)
