# SPDX-License-Identifier: Apache-2.0
"""Parts of a tensor that begin or end where a value on the device tells."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torchtpu_compile import bounded_program


def pieces(x: Tensor, sizes: Tensor) -> Any:
    return x.split(sizes.tolist(), 1)


def computed_pieces(x: Tensor, sizes: Tensor) -> Any:
    one, two = (x * 2).split(sizes.tolist(), 1)
    return one.sum(1) + two.sin().sum(1)


def from_a_place_on(x: Tensor, sizes: Tensor) -> Any:
    return x[:, sizes[0].item() :]


def computed_from_a_place_on(x: Tensor, sizes: Tensor) -> Any:
    k = sizes[0].item()
    return (x * 2)[:, k:].softmax(-1), x[:, :k].sum(-1)


@pytest.mark.parametrize("backend", ["tpu", "inductor"])
@pytest.mark.parametrize(
    "function", [pieces, computed_pieces, from_a_place_on, computed_from_a_place_on]
)
def test_part_begins_where_a_value_tells(function: Any, backend: str) -> None:
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    bounded_program.reasons.clear()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for sizes in ([3, 6], [5, 4], [2, 7]):
            x = torch.randn(4, 9).requires_grad_()
            on_device = x.detach().to("tpu").requires_grad_()
            found = []
            for call, leaf in ((compiled, on_device), (function, x)):
                results = tree_leaves(call(leaf, torch.tensor(sizes).to(leaf.device)))
                sum(r.square().sum() for r in results).backward()
                found.append([r.detach().cpu() for r in (*results, leaf.grad)])
            torch.testing.assert_close(*found)
    assert not bounded_program.reasons
