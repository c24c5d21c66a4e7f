# SPDX-License-Identifier: Apache-2.0
"""Calls that PyTorch's meta kernels let through are refused as CPU refuses them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

ONES = torch.ones
WHOLE = torch.int64

#: A call and the operands that it must refuse.
MISTAKES: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "addbmm, integer batch": (
        torch.addbmm,
        (ONES(2, 4), ONES(5, 2, 3, dtype=WHOLE), ONES(5, 3, 4)),
    ),
    "cross, integer operand": (torch.linalg.cross, (ONES(5, 3), ONES(5, 3, dtype=WHOLE))),
    "heaviside, integer values": (torch.heaviside, (ONES(3), ONES(3, dtype=WHOLE))),
    "diagonal_scatter, source too long": (torch.diagonal_scatter, (ONES(3, 5), ONES(6))),
    "diagonal_scatter, one dimension": (torch.diagonal_scatter, (ONES(3), ONES(3))),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_raises_cpus_class_and_words(name: str) -> None:
    function, operands = MISTAKES[name]
    with pytest.raises(Exception) as expected:
        function(*operands)
    with pytest.raises(type(expected.value)) as raised:
        function(*(operand.to("tpu") for operand in operands))
    assert str(raised.value).startswith(str(expected.value).split("(")[0][:40])
