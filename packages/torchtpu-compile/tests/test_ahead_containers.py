# SPDX-License-Identifier: Apache-2.0
"""What models in files take and return: nested containers, also classes of the user's."""

from __future__ import annotations

import collections
import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torchtpu_compile import ahead_containers
from torchtpu_compile.ahead import aot, load
from torchtpu_compile.errors import AOTFileError, GraphError


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Given:
    x: torch.Tensor
    mask: torch.Tensor | None = None


@dataclasses.dataclass
class Output(collections.OrderedDict):
    """In the way of Hugging Face's: a dict of the fields that are not None."""

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)


class Nested(nn.Module):
    def forward(self, given: Given, *, more: dict[str, torch.Tensor]) -> Any:
        y = given.x * 2 if given.mask is None else given.x * given.mask
        pair = Pair(y + more["q"], [3, (None, "text")])
        return Output(logits=y + 1), {"pair": pair, 7: y}, torch.max(y, 0)


def test_dataclasses_named_tuples_and_dicts(tmp_path: Path) -> None:
    given, q = Given(torch.randn(3, 2), torch.ones(3, 2)), torch.randn(2)
    aot(Nested(), (given,), {"more": {"q": q, "unread": q}}, path=tmp_path / "m")
    made = load(tmp_path / "m")
    found = made(given, more={"unread": q, "q": q})
    expected = Nested()(given, more={"q": q})
    assert [type(x) for x in found] == [type(x) for x in expected]
    assert list(found[0]) == ["logits"]
    assert found[0].loss is None
    assert found[1]["pair"].second == [3, (None, "text")]
    assert torch.equal(found[1]["pair"].first.cpu(), expected[1]["pair"].first)
    assert torch.equal(found[2].indices.cpu(), expected[2].indices)
    with pytest.raises(AOTFileError, match=r"Given\(x=float32\[3, 2\], mask=None\)"):
        made(Given(given.x), more={"q": q, "unread": q})
    assert Given not in pytree.SUPPORTED_NODES  # the user may register it


def test_class_that_is_not_imported_becomes_a_named_tuple(tmp_path: Path) -> None:
    @dataclasses.dataclass
    class Local:
        value: torch.Tensor
        count: int = 3

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Local:
            return Local(x + 1)

    aot(Model(), (torch.ones(3),), path=tmp_path / "m")
    found = load(tmp_path / "m")(torch.ones(3))
    assert isinstance(found, tuple)
    assert type(found).__name__ == "Local"
    assert found.count == 3
    assert torch.equal(found.value.cpu(), torch.full((3,), 2.0))


def test_name_in_a_file_makes_no_object_of_another_class() -> None:
    stated = ["fields", "subprocess:Popen", ["args"], [None]]
    made = ahead_containers.unflatten(stated, iter(["true"]))
    assert made == ("true",)


def test_what_a_file_cannot_hold_is_refused(tmp_path: Path) -> None:
    class Unknown:
        pass

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Unknown]:
            return x + 1, Unknown()

    with pytest.raises(GraphError, match="Unknown"):
        aot(Model(), (torch.ones(3),), path=tmp_path / "m")
