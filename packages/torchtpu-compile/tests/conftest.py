# SPDX-License-Identifier: Apache-2.0
"""A clean compiler state around each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torchtpu_compile import eager_sizes
from torchtpu_core import _C
from torchtpu_core.runtime import varying


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Forget what Dynamo compiled; CPU references in full float32."""
    torch.set_float32_matmul_precision("highest")
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def compiles() -> Iterator[Callable[[], int]]:
    """Fused Eager without sizes, streams or programs of before; what is called counts compiles."""

    def count() -> int:
        torch.tpu.synchronize()
        torch.tpu.wait_for_compiles()
        compiled: int = torch.tpu.counters()["compiles"]
        return compiled

    torch.tpu.init()
    torch.tpu.wait_for_compiles()
    varying.forget()
    eager_sizes.forget()
    _C.forget_streams()
    _C.clear_programs()
    with torch.tpu.set_eager_mode("fused"):
        yield count
