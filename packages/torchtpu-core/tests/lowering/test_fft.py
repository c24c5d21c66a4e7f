# SPDX-License-Identifier: Apache-2.0
"""FFT primitives give CPU PyTorch's values in every normalisation."""

from __future__ import annotations

import itertools

import pytest
import torch
from torchtpu_core.lowering.fft import TABLE
from torchtpu_core.testing.lowering import check

REAL = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
COMPLEX = torch.complex(REAL, REAL.flip(0))
# The primitives take canonical dimensions: torch.fft has made them so.
DIMS = ([3], [0], [1, 3], [3, 0, 2], [0, 1, 2, 3])


@pytest.mark.parametrize(("dim", "norm"), list(itertools.product(DIMS, (0, 1, 2))), ids=str)
def test_complex_fft_gives_cpu_values(dim: list[int], norm: int) -> None:
    check("aten::_fft_c2c", COMPLEX, dim, norm, norm != 1, table=TABLE)


@pytest.mark.parametrize("dim", DIMS, ids=str)
@pytest.mark.parametrize("onesided", [True, False])
def test_real_fft_gives_cpu_values(dim: list[int], onesided: bool) -> None:
    check("aten::_fft_r2c", REAL, dim, 1, onesided, table=TABLE)


@pytest.mark.parametrize("dim", DIMS, ids=str)
@pytest.mark.parametrize("parity", [0, 1])
def test_inverse_real_fft_gives_cpu_values(dim: list[int], parity: int) -> None:
    size = 2 * (COMPLEX.shape[dim[-1]] - 1) + parity
    check("aten::_fft_c2r", COMPLEX.to(torch.complex128), dim, 2, size, table=TABLE)


def test_backward_transform_inverts_forward() -> None:
    forward = torch.fft.fftn(COMPLEX.to(torch.complex128))
    check("aten::_fft_c2c", forward, [0, 1, 2, 3], 2, False, table=TABLE)
