# SPDX-License-Identifier: Apache-2.0
"""Sparse gradients of bags of embeddings are the CPU's, and optimizers take them."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.nn import functional

_TABLE = torch.linspace(-2, 3, 15).reshape(5, 3)
_ROWS = torch.tensor([1, 4, 1, 0, 3, 3, 2])
_STARTS = torch.tensor([0, 3, 3, 5])
_FACTORS = torch.linspace(0.5, 2, 7)

_BAGS = {
    "sum": {"mode": "sum"},
    "mean": {"mode": "mean"},
    "mean with padding": {"mode": "mean", "padding_idx": 3},
    "sum with padding": {"mode": "sum", "padding_idx": 1},
    "weighted sum": {"mode": "sum", "per_sample_weights": _FACTORS},
    "last offset": {
        "mode": "sum",
        "include_last_offset": True,
        "offsets": torch.tensor([0, 3, 3, 7]),
    },
}


def _leaf(x: torch.Tensor, device: str) -> torch.Tensor:
    return x.clone().to(device).requires_grad_()


def _gradient(device: str, options: dict[str, object]) -> torch.Tensor:
    table = _leaf(_TABLE, device)
    moved = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    moved = {"offsets": _STARTS.to(device), **moved}
    out = functional.embedding_bag(_ROWS.to(device), table, sparse=True, **moved)
    out.sin().sum().backward()
    return table.grad


@pytest.mark.parametrize("options", _BAGS.values(), ids=_BAGS)
def test_sparse_gradient_of_a_bag_has_the_rows_and_values_of_cpu(options):
    actual, expected = _gradient("tpu", options), _gradient("cpu", options)
    assert (actual.layout, actual.device.type) == (torch.sparse_coo, "tpu")
    actual, expected = actual.coalesce(), expected.coalesce()
    assert torch.equal(actual.indices().cpu(), expected.indices())
    torch.testing.assert_close(actual.values().cpu(), expected.values())


def test_sparse_gradient_of_bags_of_one_size_is_that_of_cpu():
    made = []
    for device in ("tpu", "cpu"):
        table = _leaf(_TABLE, device)
        rows = _ROWS[:6].reshape(2, 3).to(device)
        functional.embedding_bag(rows, table, sparse=True, mode="mean").sin().sum().backward()
        made.append(table.grad.cpu().to_dense())
    torch.testing.assert_close(made[0], made[1])


def test_factors_of_a_sparse_bag_have_the_gradient_of_cpu():
    made = []
    for device in ("tpu", "cpu"):
        table, factors = (_leaf(x, device) for x in (_TABLE, _FACTORS))
        functional.embedding_bag(
            _ROWS.to(device),
            table,
            _STARTS.to(device),
            mode="sum",
            sparse=True,
            per_sample_weights=factors,
        ).sin().sum().backward()
        made.append((factors.grad.cpu(), table.grad.cpu().to_dense()))
    torch.testing.assert_close(made[0], made[1])


def test_scaling_by_frequency_of_a_sparse_gradient_is_refused_as_on_cpu():
    options = {"mode": "sum", "scale_grad_by_freq": True}
    for device in ("cpu", "tpu"):
        with pytest.raises(RuntimeError, match="scale_grad_by_freq not supported with sparse"):
            _gradient(device, options)


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize(
    "maker",
    [
        torch.optim.SparseAdam,
        torch.optim.SGD,
        partial(torch.optim.SGD, momentum=0.9),
        partial(torch.optim.SGD, momentum=0.9, foreach=False),
        torch.optim.Adagrad,
    ],
    ids=["SparseAdam", "SGD", "momentum", "momentum in a loop", "Adagrad"],
)
def test_optimizers_take_the_sparse_gradient_as_on_cpu(maker, mode):
    made = []
    for device in ("tpu", "cpu"):
        bag = torch.nn.EmbeddingBag.from_pretrained(
            _TABLE.clone().to(device), freeze=False, mode=mode, sparse=True
        )
        optimizer = maker(bag.parameters(), lr=0.1)
        for shift in (0, 1, 2):
            optimizer.zero_grad()
            bag((_ROWS.to(device) + shift) % 5, _STARTS.to(device)).sin().sum().backward()
            optimizer.step()
        made.append(bag.weight.detach().cpu())
    torch.testing.assert_close(made[0], made[1])
