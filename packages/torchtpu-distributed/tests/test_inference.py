# SPDX-License-Identifier: Apache-2.0
"""Collectives in `torch.inference_mode`: its tensors refuse to be written by threads outside."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("kind", ["functional_sum", "later_sum"])
def test_all_reduce_in_inference_mode_sums(pair, kind):
    each = [torch.arange(6.0), torch.arange(6.0) + 10]
    for found in pair(f"inference.{kind}", each=each):
        assert found.tolist() == (each[0] + each[1]).tolist()
