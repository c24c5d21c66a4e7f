# SPDX-License-Identifier: Apache-2.0
"""When a result of the sweep agrees with the CPU's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torchtpu_core.testing.op_compare import compare, compare_ties

NAN = float("nan")
ONES = torch.ones(3)


@pytest.mark.parametrize(
    "other",
    [
        torch.tensor([1.0, 1.0, 1.01]),
        torch.tensor([1.0, 1.0, NAN]),
        torch.ones(3, dtype=torch.float64),
        torch.ones(1, 3),
        [ONES, ONES],
        [],
    ],
    ids=["value", "nan", "dtype", "shape", "more", "none"],
)
def test_compare_with_another_result_raises(other: object) -> None:
    with pytest.raises(AssertionError):
        compare(other, ONES)


def test_compare_of_equal_results_takes_nan_for_nan() -> None:
    compare({"a": torch.tensor([1.0, NAN]), "b": NAN}, {"a": torch.tensor([1.0, NAN]), "b": NAN})


def test_compare_without_values_looks_at_shapes_alone() -> None:
    compare(torch.zeros(3), ONES, values=False)
    with pytest.raises(AssertionError):
        compare(torch.zeros(4), ONES, values=False)


def test_compare_of_a_badly_conditioned_result_asks_what_the_cpu_achieves() -> None:
    exact, cpu = torch.tensor([2.0], dtype=torch.float64), torch.tensor([2.01])
    compare(torch.tensor([1.99]), cpu, exact=lambda: exact)
    with pytest.raises(AssertionError):
        compare(torch.tensor([1.8]), cpu, exact=lambda: exact)
    with pytest.raises(AssertionError):
        compare(torch.tensor([NAN]), cpu, exact=lambda: exact)


def test_compare_ties_accepts_other_indices_of_equal_values_only() -> None:
    op = SimpleNamespace(name="topk")
    sample = SimpleNamespace(input=torch.tensor([1.0, 5.0, 5.0, 2.0]), args=(1, 0), kwargs={})
    expected = (torch.tensor([5.0]), torch.tensor([1]))
    compare_ties(op, (sample, (torch.tensor([5.0]), torch.tensor([2]))), expected)
    with pytest.raises(AssertionError):
        compare_ties(op, (sample, (torch.tensor([5.0]), torch.tensor([3]))), expected)
