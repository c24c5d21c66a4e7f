# SPDX-License-Identifier: Apache-2.0
"""Factories give CPU PyTorch's values, as functions and with ``out=``."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torchtpu_core.lowering import factories, spacing
from torchtpu_core.testing.lowering import assert_close, check, lower

X = torch.ones(2, 3)
F64, I32, BF16 = torch.float64, torch.int32, torch.bfloat16

CASES: list[tuple[Any, ...]] = [
    ("arange", 5, {}),
    ("arange", 5.5, {}),
    ("arange", 5.5, {"dtype": torch.int64}),
    ("arange.start", -2, 3, {"dtype": BF16}),
    ("arange.start_step", 5, -4, -3, {}),
    ("arange.start_step", 0.0, 1.0, 0.1, {}),
    ("arange.start_step", 1, 1, 1, {}),
    ("range", 0.0, 3, {}),
    ("range.step", 1, 8, 3, {"dtype": I32}),
    ("linspace", -1, 2.5, 7, {}),
    ("linspace", 0, 10, 4, {"dtype": torch.int64}),
    ("linspace", 4.3, -3, 50, {"dtype": torch.int64}),
    ("linspace", 3, 10, 1, {"dtype": F64}),
    ("linspace", 0, 1j, 3, {}),
    ("linspace.Tensor_Tensor", torch.tensor(1.0), torch.tensor(2), 4, {}),
    ("logspace", 0, 3, 4, {}),
    ("logspace", -1, 1, 5, 2.0, {"dtype": F64}),
    ("logspace", 0, 1.2, 2, {"dtype": I32}),
    ("eye", 3, {"dtype": torch.bool}),
    ("eye.m", 2, 4, {}),
    ("full", [2, 2], 7, {}),
    ("full", [2], True, {}),
    ("full", [2], 1.5, {"dtype": BF16}),
    ("full_like", X, 7, {"dtype": I32}),
    ("new_full", X, [3], 2.5, {}),
    ("scalar_tensor", 3, {}),
    ("zeros", [2, 0], {}),
    ("ones", [2], {"dtype": torch.int64}),
    ("zeros_like", X.int(), {}),
    ("ones_like", X, {"dtype": BF16}),
    ("new_zeros", X, [4], {"dtype": I32}),
    ("new_ones", X.bool(), [4], {}),
    ("tril_indices", 3, 4, {}),
    ("tril_indices", 4, 3, -2, {"dtype": I32}),
    ("triu_indices", 3, 5, 1, {}),
    ("triu_indices", 3, 2, 7, {}),
    ("triu_indices", 0, 2, {}),
    ("hann_window", 7, {}),
    ("hann_window.periodic", 7, False, {}),
    ("hamming_window.periodic_alpha", 6, True, 0.6, {}),
    ("hamming_window.periodic_alpha_beta", 6, False, 0.6, 0.3, {}),
    ("blackman_window", 8, {"dtype": F64}),
    ("bartlett_window", 5, {}),
    ("bartlett_window.periodic", 1, False, {}),
]

TABLE = factories.TABLE + spacing.TABLE


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
def test_factory_gives_cpu_values(case: tuple[Any, ...]) -> None:
    check(f"aten::{case[0]}", *case[1:-1], table=TABLE, **case[-1])


OUTS: list[tuple[Any, ...]] = [
    ("arange.start_out", 1, 10, 4, torch.empty(3)),
    ("arange.start_out", 0, 1, 0.25, torch.empty(4, dtype=F64)),
    ("arange.start_out", 2**40, 2**40 + 3, 1, torch.empty(3, dtype=torch.int64)),
    ("range.out", 1, 2, 0.5, torch.empty(3)),
    ("linspace.out", 0, 5, 4, torch.empty(4, dtype=torch.int64)),
    ("logspace.out", 0, 2, 3, torch.empty(3)),
    ("eye.out", 2, torch.empty(2, 2, dtype=I32)),
    ("eye.m_out", 2, 3, torch.empty(2, 3)),
]


@pytest.mark.parametrize("case", OUTS, ids=lambda c: c[0])
def test_factory_with_out_fills_it_as_cpu(case: tuple[Any, ...]) -> None:
    name, *args, out = case
    row = next(r for r in TABLE if r.overload == f"aten::{name}")
    actual = lower(row, args, {"out": torch.zeros_like(out)}).to(out.dtype)
    packet, _, variant = name.partition(".")
    expected = getattr(getattr(torch.ops.aten, packet), variant)(*args, out=out)
    assert_close(actual, expected)


@pytest.mark.parametrize("args", [(6, True, 8.0), (5, False), (1,), (0,), (2, True, 3.0)], ids=str)
def test_kaiser_window_gives_cpu_values(args: tuple[Any, ...]) -> None:
    assert_close(factories._kaiser_window(*args), torch.kaiser_window(*args))
    assert_close(factories._kaiser_window(*args, dtype=F64), torch.kaiser_window(*args, dtype=F64))


@pytest.mark.parametrize("space", [torch.linspace, torch.logspace])
@pytest.mark.parametrize("ends", [(0, 1), (0.0, torch.tensor(1.0)), (torch.tensor(0.0), 1)])
@pytest.mark.parametrize("steps", [0, 6])
@pytest.mark.parametrize("shape", [(2, 0), (3, 2), (4,)])
def test_range_into_out_of_as_many_elements_keeps_its_shape(space, ends, steps, shape) -> None:
    results = []
    for device in ("cpu", "tpu"):
        moved = [e.to(device) if isinstance(e, torch.Tensor) else e for e in ends]
        whole = torch.zeros(shape, device=device)
        out = whole.permute(*reversed(range(whole.ndim)))
        with warnings.catch_warnings(action="ignore"):
            space(*moved, steps, out=out)
        results.append(out.cpu())
    torch.testing.assert_close(results[1], results[0])
