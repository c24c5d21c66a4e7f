# SPDX-License-Identifier: Apache-2.0
"""Expressions of sizes and the largest value they can have."""

from __future__ import annotations

import pytest
import sympy
from torch.utils._sympy.functions import FloorDiv
from torchtpu_compile.symbols import largest

S = sympy.Symbol("s0", positive=True, integer=True)


@pytest.mark.parametrize("most", [1, 3, 8, 40])
def test_largest_value_of_a_quotient_skips_sizes_where_it_has_none(most: int) -> None:
    values = [64 // (n // 4) for n in range(4, most + 1)]
    assert largest(FloorDiv(64, FloorDiv(S, 4)), most) == max(values, default=0)
