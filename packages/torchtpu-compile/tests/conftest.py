# SPDX-License-Identifier: Apache-2.0
"""A clean compiler state around each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Forget what Dynamo compiled; CPU references in full float32."""
    torch.set_float32_matmul_precision("highest")
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
