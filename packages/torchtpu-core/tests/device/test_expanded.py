# SPDX-License-Identifier: Apache-2.0
"""Ops that CPU's kernels run on expanded tensors leave in memory what they leave on CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

#: On `(2, 3)` views of the elements 0 to 5 that repeat a row or a column.
WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "masked_fill_": lambda x: x.masked_fill_(_mask(x), 9.0),
    "masked_fill_ with a tensor": lambda x: x.masked_fill_(_mask(x), x.new_tensor(9.0)),
    "masked_fill_ of a broadcast mask": lambda x: x.masked_fill_(_mask(x)[0], 9.0),
    "index_fill_ of a column": lambda x: x.index_fill_(1, _index(x, 0, 2), 9.0),
    "index_fill_ of a row": lambda x: x.index_fill_(0, _index(x, 1), 9.0),
    "index_put_ of elements": lambda x: x.index_put_(
        (_index(x, 0, 1), _index(x, 0, 2)), x.new_tensor([7.0, 8.0])
    ),
    "index_put_ of elements that are one": lambda x: x.index_put_(
        (_index(x, 0, 1, 0), _index(x, 1, 1, 0)), x.new_tensor([7.0, 8.0, 9.0])
    ),
    "index_put_ that adds": lambda x: x.index_put_(
        (_index(x, 0, 1), _index(x, 1, 1)), x.new_tensor([7.0, 8.0]), accumulate=True
    ),
    "setting a row": lambda x: x.__setitem__(_index(x, 1), x.new_tensor([7.0, 8.0, 9.0])),
    "setting by a mask": lambda x: x.__setitem__(_mask(x), 9.0),
    "tril_": lambda x: x.tril_(),
    "triu_ above the diagonal": lambda x: x.triu_(1),
    "threshold_": lambda x: torch.threshold_(x, 1.5, 9.0),
}
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a row": lambda x: x[1:4].expand(2, 3),
    "a column": lambda x: x[2:4].unsqueeze(1).expand(2, 3),
    "every second element": lambda x: x[1::2].expand(2, 3),
    "one element": lambda x: x[4].expand(2, 3),
}


def _mask(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor([[True, False, True], [False, False, True]], device=x.device)


def _index(x: torch.Tensor, *places: int) -> torch.Tensor:
    return torch.tensor(places, device=x.device)


@pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors is deprecated")
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", WRITES)
def test_write_to_expanded_tensor_leaves_what_cpu_leaves(name: str, view: str) -> None:
    expected, x = torch.arange(6.0), torch.arange(6.0, device="tpu")
    WRITES[name](VIEWS[view](expected))
    WRITES[name](VIEWS[view](x))
    assert x.tolist() == expected.tolist()


@pytest.mark.parametrize("beta", [1, 2, 0])
@pytest.mark.parametrize("alpha", [1, 3])
def test_products_added_to_one_element_are_added_in_turn(beta: int, alpha: int) -> None:
    mat, vec = torch.arange(6.0).reshape(3, 2), torch.tensor([1.0, 2.0])
    batch = torch.arange(12.0).reshape(2, 2, 3)
    for device in ("cpu", "tpu"):
        x = torch.ones(1, device=device)
        x.expand(3).addmv_(mat.to(device), vec.to(device), beta=beta, alpha=alpha)
        y = torch.ones(2, 1, device=device)
        right = batch.reshape(2, 3, 2).to(device)
        y.expand(2, 2, 2).baddbmm_(batch.to(device), right, beta=beta, alpha=alpha)
        if device == "cpu":
            expected = x, y
    torch.testing.assert_close((x.cpu(), y.cpu()), expected)


@pytest.mark.parametrize("name", ["masked_fill_", "index_fill_ of a row", "index_put_ of elements"])
def test_deprecated_write_warns_as_on_cpu(name: str) -> None:
    messages = []
    for device in ("cpu", "tpu"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            WRITES[name](torch.arange(3.0, device=device).expand(2, 3))
        messages.append([str(w.message).partition(" (Triggered")[0] for w in caught])
    assert messages[0]
    assert messages[1] == messages[0]


def test_write_to_expanded_tensor_refuses_what_cpu_refuses() -> None:
    for device, mask in (("cpu", torch.ones(2)), ("tpu", torch.ones(2, device="tpu"))):
        with (
            warnings.catch_warnings(action="ignore"),
            pytest.raises(RuntimeError, match="only supports boolean masks"),
        ):
            torch.zeros(1, device=device).expand(2).masked_fill_(mask, 1.0)
