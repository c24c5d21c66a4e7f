# SPDX-License-Identifier: Apache-2.0
"""Every test of the database starts in Strict mode, on device 0, with exact products."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _fresh_state() -> Iterator[None]:
    pytest.importorskip("torchtpu_eager", reason="ops need an execution mode")
    torch.tpu.init()
    torch.tpu.set_eager_mode("strict")
    torch.tpu.set_device(0)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(precision)
