# SPDX-License-Identifier: Apache-2.0
"""Every test of a model starts in Strict mode, on device 0, with known seeds."""

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
    torch.manual_seed(0)
    yield
    torch.tpu.set_device(0)
