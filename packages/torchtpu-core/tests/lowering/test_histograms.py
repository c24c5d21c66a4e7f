# SPDX-License-Identifier: Apache-2.0
"""Histograms with edges against CPU PyTorch."""

from __future__ import annotations

import pytest
import torch
from torchtpu_core.lowering import histograms
from torchtpu_core.testing.lowering import check, lower

TABLE = histograms.TABLE
RANDOM = torch.randn(40, generator=torch.Generator().manual_seed(0))
NAN = float("nan")


@pytest.mark.parametrize("density", [False, True])
def test_histogram_of_bin_count_equals_cpu(density: bool) -> None:
    weight = torch.linspace(0.5, 2.0, 40)
    check("aten::histogram.bin_ct", RANDOM, 7, table=TABLE, density=density)
    check("aten::histogram.bin_ct", RANDOM, 7, table=TABLE, weight=weight, density=density)
    check("aten::histogram.bin_ct", RANDOM.reshape(5, 8), 3, table=TABLE, range=[-1.0, 0.5])


@pytest.mark.parametrize("x", [torch.tensor([2.0, 2.0]), torch.empty(0), torch.tensor(1.5)])
def test_histogram_of_one_value_or_none_widens_the_range(x: torch.Tensor) -> None:
    check("aten::histogram.bin_ct", x, 4, table=TABLE)


def test_histogram_between_edges_counts_the_last_edge_and_skips_nan() -> None:
    edges = torch.tensor([0.0, 0.5, 1.0, 4.0])
    x = torch.tensor([0.0, 0.5, 0.5, 1.0, 4.0, 4.5, -1.0, NAN])
    check("aten::histogram.bins_tensor", x, edges, table=TABLE)


def test_histogram_of_infinity_raises() -> None:
    row = next(r for r in TABLE if r.overload == "aten::histogram.bin_ct")
    with pytest.raises(RuntimeError, match="finite"):
        lower(row, (torch.tensor([1.0, float("inf")]), 4), {})


def test_histogramdd_equals_cpu() -> None:
    points = RANDOM.reshape(2, 10, 2)
    for made, expected in zip(
        histograms.histogramdd_edges(points, [3, 2]),
        torch.ops.aten._histogramdd_bin_edges(points, [3, 2]),
        strict=True,
    ):
        torch.testing.assert_close(made, expected)
    check("aten::_histogramdd_from_bin_cts", points, [3, 2], table=TABLE, density=True)
    check(
        "aten::_histogramdd_from_bin_cts", points, [3, 2], table=TABLE, range=[-1.0, 1.0, 0.0, 2.0]
    )
    edges = [torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([-0.5, 0.1, 0.3, 1.0])]
    check("aten::_histogramdd_from_bin_tensors", points, edges, table=TABLE)
