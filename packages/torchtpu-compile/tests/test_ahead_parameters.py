# SPDX-License-Identifier: Apache-2.0
"""Ways to write one call of a model in a file, and mistakes in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torchtpu_compile.ahead import aot, load
from torchtpu_compile.errors import AOTFileError, GraphError

X, Y = torch.arange(3.0), torch.ones(3)


class Scaled(nn.Module):
    def forward(
        self, x: Tensor, y: Tensor | None = None, *, scale: float = 1.0, z: Tensor | None = None
    ) -> Tensor:
        total = x * scale
        for part in (y, z):
            total = total if part is None else total + 2 * part
        return total


class Many(nn.Module):
    def forward(self, x: Tensor, /, y: Tensor, *more: Tensor, **named: Tensor) -> Tensor:
        return x + 2 * y + sum(more) - sum(named.values())


def calls(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


@pytest.mark.parametrize(
    ("model", "example", "others"),
    [
        (
            Scaled(),
            calls(X, Y),
            [calls(y=Y, x=X), calls(X, y=Y), calls(X, Y, scale=1.0), calls(X, Y, z=None)],
        ),
        (Scaled(), calls(X, z=Y, y=Y, scale=2.0), [calls(X, Y, scale=2.0, z=Y)]),
        (Scaled(), calls(X, None), [calls(X), calls(x=X, y=None)]),
        (Many(), calls(X, Y, Y, q=X), []),
        (Many(), calls(X, Y, q=X), [calls(X, y=Y, q=X)]),
    ],
)
def test_call_written_in_another_way_is_the_same(
    tmp_path: Path, model: nn.Module, example: Any, others: Any
) -> None:
    aot(model, *example, path=tmp_path / "m")
    made = load(tmp_path / "m")
    for args, kwargs in (example, *others):
        assert torch.equal(made(*args, **kwargs).cpu(), model(*args, **kwargs))


def test_wrong_calls_say_what_the_file_was_made_for(tmp_path: Path) -> None:
    aot(Scaled(), (X, Y), path=tmp_path / "m")
    made = load(tmp_path / "m")
    for (args, kwargs), message in (
        (calls(X, yy=Y), "no argument of the name 'yy'; those it has are x, y, scale, z"),
        (calls(X, Y, y=Y), "the argument y is given by position and by name"),
        (calls(X, Y, scale=2.0), r"called with \(float32\[3\], float32\[3\], scale=2\.0\)"),
        (calls(X), r"called with \(float32\[3\]\)"),
        (calls(y=Y), r"called with \(y=float32\[3\]\)"),
        (calls(X, Y, Y), r"called with \(float32\[3\], float32\[3\], float32\[3\]\)"),
    ):
        with pytest.raises(AOTFileError, match=message):
            made(*args, **kwargs)


N = Dim("n", max=9)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (({3: N},), r"argument pair has no dimension 3 .*\[4, 2\]"),
        ({"pair": [{0: N}, {-3: N}]}, r"argument pair\[1\] has no dimension -3"),
        ({"pair": [{"n": N}, None]}, r"argument pair\[0\] has no dimension 'n'"),
        (N, "names no argument. Give a dict"),
    ],
)
def test_dimension_that_is_not_there_is_refused(tmp_path: Path, dims: Any, message: str) -> None:
    class First(nn.Module):
        def forward(self, pair: Any) -> Tensor:
            return pair[0] + 1

    x = torch.ones(4, 2)
    pair = [x, x] if isinstance(dims, dict) else x
    with pytest.raises(GraphError, match=message):
        aot(First(), (pair,), path=tmp_path / "m", dynamic_shapes=dims)


def test_dimensions_count_from_the_end_where_negative(tmp_path: Path) -> None:
    aot(nn.ReLU(), (torch.ones(4, 2),), path=tmp_path / "m", dynamic_shapes=({-2: N},))
    made = load(tmp_path / "m")
    for n in (1, 9):
        assert torch.equal(made(torch.ones(n, 2)).cpu(), torch.ones(n, 2))
