# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends an operator that is seen for the first time; it is not taken for a refusal."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
import torch
from torchtpu_core.lowering import refusals


def _interrupted(*_: Any, **__: Any) -> NoReturn:
    raise KeyboardInterrupt


def test_ctrl_c_in_a_check_is_not_reworded(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU PyTorch would say that weights of zeros are no distribution."""
    monkeypatch.setitem(refusals.CHECKS, "aten::multinomial", _interrupted)
    weights = torch.ones(7, device="tpu")
    with pytest.raises(KeyboardInterrupt):
        torch.multinomial(weights, 2)


def test_ctrl_c_in_a_meta_kernel_is_raised() -> None:
    """CPU PyTorch takes such a call."""
    vector = torch.ones(7, device="tpu")
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("im2col", _interrupted, "Meta")
        with pytest.raises(KeyboardInterrupt):
            torch.nn.functional.unfold(torch.ones(1, 7, 5, 5, device="tpu"), 3)
    assert vector.sum().item() == 7
