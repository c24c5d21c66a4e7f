# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of Fused Eager."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torchtpu_core import _C
from torchtpu_eager import fused


@pytest.fixture
def compiles_at_once() -> Iterator[None]:
    """Fused Eager that knows no stream yet and waits for its programs."""
    torch.tpu.init()
    before = fused.configure(background=False)
    _C.forget_streams()
    torch.tpu.reset_counters()
    with torch.tpu.set_eager_mode("fused"):
        yield
    fused.configure(background=before.background)
