# SPDX-License-Identifier: Apache-2.0
"""The operator: against its formula on the CPU, its lowering against the CPU."""

from __future__ import annotations

import pytest
import torch
from torchtpu_core.testing.lowering import check
from torchtpu_plugin_example import softcap
from torchtpu_plugin_example.softcap import TABLE


def test_softcap_on_cpu_follows_its_formula_and_stays_within_the_cap() -> None:
    x = torch.tensor([-1e4, -1.0, 0.0, 2.0, 1e4])
    y = softcap(x, 3.0)
    torch.testing.assert_close(y, 3.0 * torch.tanh(x / 3.0))
    assert y.abs().max() <= 3.0


def test_softcap_gradient_matches_finite_differences() -> None:
    x = torch.linspace(-4, 4, 9, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: softcap(v, 2.0), (x,))


def test_softcap_passes_torch_library_checks() -> None:
    torch.library.opcheck(softcap, (torch.randn(3, 2, requires_grad=True), 2.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(3, 5), (), (0, 2)])
def test_lowering_agrees_with_cpu(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = 8 * torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    check("torchtpu_example::softcap", x, 2.5, table=TABLE)
