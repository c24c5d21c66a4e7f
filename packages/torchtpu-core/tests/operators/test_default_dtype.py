# SPDX-License-Identifier: Apache-2.0
"""The default dtype decides results at every call, not at the first."""

from __future__ import annotations

import torch


def test_division_of_whole_numbers_follows_the_default_dtype():
    x = torch.arange(1, 4, device="tpu")
    assert (x / x).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert (x / 3).dtype == (x / x).dtype == torch.float64
        assert torch.equal((x / 3).cpu(), torch.arange(1, 4) / 3)
    finally:
        torch.set_default_dtype(torch.float32)
    assert (x / x).dtype == torch.float32
