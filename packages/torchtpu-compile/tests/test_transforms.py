# SPDX-License-Identifier: Apache-2.0
"""Functions that `torch.func` transforms in a compiled function, with Python numbers in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


def _numbers(x: Tensor) -> Tensor:
    two_sides = torch.add(3, x, alpha=2) * torch.sub(2, x, alpha=3)
    return two_sides + torch.add(x, 2, alpha=0.5) * torch.sub(x, 2, alpha=3) + (3 - x) / (x * x + 1)


TRANSFORMED: dict[str, Callable[[Tensor], Any]] = {
    "grad": torch.func.grad(lambda x: _numbers(x).sum()),
    "jvp": lambda x: torch.func.jvp(lambda x: x.sin() + 3, (x,), (x,)),
    "vjp": lambda x: torch.func.vjp(lambda x: x.sin() - 1, x)[1](x),
    "hessian": torch.func.hessian(lambda x: (x.sin() + 3).pow(3).sum()),
    "jacfwd": torch.func.jacfwd(_numbers),
    "vmap": torch.func.vmap(_numbers),
    "vmap of grad": torch.func.vmap(torch.func.grad(_numbers)),
    "grad of windows": torch.func.grad(lambda x: x.as_strided((2, 2), (1, 1)).pow(3).sum()),
    "vmap of other types": torch.func.vmap(lambda x: ((x > 0) + 1, x.bfloat16() + 0.1, x // 0.5)),
}


@pytest.mark.parametrize("backend", ["tpu", "inductor"])
@pytest.mark.parametrize("name", TRANSFORMED)
def test_numbers_stay_numbers(name: str, backend: str) -> None:
    function = TRANSFORMED[name]
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for n in (3, 4, 6):  # of open size from the second on
        x = torch.linspace(-1, 2, n)
        for actual, expected in zip(
            tree_leaves(compiled(x.to("tpu"))), tree_leaves(function(x)), strict=True
        ):
            torch.testing.assert_close(actual.cpu(), expected)
