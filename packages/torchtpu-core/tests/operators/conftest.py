# SPDX-License-Identifier: Apache-2.0
"""Every test of the operators starts in Strict mode with known seeds and exact references."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _fresh_state() -> Iterator[None]:
    pytest.importorskip("torchtpu_eager", reason="ops need an execution mode")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    torch.tpu.set_eager_mode("strict")
    torch.manual_seed(0)
    yield
    torch.set_float32_matmul_precision(before)
