# SPDX-License-Identifier: Apache-2.0
"""Every ``_foreach_*`` row against CPU PyTorch, on lists of unlike shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchtpu_core.lowering.foreach import TABLE
from torchtpu_core.testing.lowering import check

SHAPES = ((3, 2), (), (4,), (0,))


def tensors(seed: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Values in [0.1, 0.9], where every function of the family is finite and smooth."""
    generator = torch.Generator().manual_seed(seed)
    return [(torch.rand(s, generator=generator) * 0.8 + 0.1).to(dtype) for s in SHAPES]


NUMBERS = [0.5, 2.0, 0.25, 3.0]
WHOLE = [torch.tensor([1, -2, 3]), torch.tensor(4)]
MATRICES = [torch.ones(2, 3), torch.arange(8.0).reshape(4, 2)]

BY_VARIANT: dict[str, tuple[Any, ...]] = {
    "": (),
    "Scalar": (0.5,),
    "ScalarList": (NUMBERS,),
    "List": (tensors(1),),
    "Tensor": (torch.tensor(0.5),),
}

TERNARY: dict[str, tuple[Any, ...]] = {
    "Scalar": (tensors(1), tensors(2), 0.5),
    "ScalarList": (tensors(1), tensors(2), NUMBERS),
    "Tensor": (tensors(1), tensors(2), torch.tensor(NUMBERS)),
}

SPECIAL: dict[str, tuple[Any, ...]] = {
    "aten::_foreach_lerp.List": (tensors(0), tensors(1), tensors(2)),
    "aten::_foreach_lerp.Scalar": (tensors(0), tensors(1), 0.75),
    "aten::_foreach_lerp.ScalarList": (tensors(0), tensors(1), [0.0, 1.0, 0.25, 0.5]),
    "aten::_foreach_pow.Scalar": (tensors(0), 3),
    "aten::_foreach_pow.ScalarAndTensor": (0.9, tensors(0)),
    "aten::_foreach_norm.Scalar": (tensors(0),),
    "aten::_foreach_powsum.Scalar": (tensors(0), 3),
    "aten::_foreach_max": (tensors(0)[:3],),
    "aten::_foreach_copy": (tensors(0), tensors(1, torch.float64)),
    "aten::_foreach_mm": (MATRICES, [m.T.clone() for m in MATRICES]),
}


def arguments(overload: str) -> tuple[Any, ...]:
    if overload in SPECIAL:
        return SPECIAL[overload]
    name, _, variant = overload.partition(".")
    if "addc" in name:
        return tensors(0), *TERNARY[variant]
    return tensors(0), *BY_VARIANT[variant]


OVERLOADS = [row.overload for row in TABLE]


@pytest.mark.parametrize("overload", OVERLOADS)
def test_foreach_float32_equals_cpu(overload: str) -> None:
    check(overload, *arguments(overload), table=TABLE)


@pytest.mark.parametrize("kind", ["List", "Tensor"])
def test_foreach_add_alpha_scales_second_operand(kind: str) -> None:
    check(f"aten::_foreach_add.{kind}", tensors(0), *BY_VARIANT[kind], alpha=2.5, table=TABLE)


@pytest.mark.parametrize(
    ("overload", "args"),
    [
        ("aten::_foreach_add.Scalar", (WHOLE, 2)),
        ("aten::_foreach_add.Scalar", (WHOLE, 2.5)),
        ("aten::_foreach_div.ScalarList", (WHOLE, [2, 4])),
        ("aten::_foreach_sqrt", (tensors(3, torch.bfloat16),)),
        ("aten::_foreach_mul.ScalarList", (tensors(3, torch.bfloat16), NUMBERS)),
        ("aten::_foreach_norm.Scalar", (tensors(3), 1)),
        ("aten::_foreach_norm.Scalar", (tensors(3, torch.bfloat16), 2, torch.float32)),
        ("aten::_foreach_pow.Scalar", (tensors(3), 0.5)),
    ],
)
def test_foreach_other_dtypes_equal_cpu(overload: str, args: tuple[Any, ...]) -> None:
    check(overload, *args, table=TABLE)
