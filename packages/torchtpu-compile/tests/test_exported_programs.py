# SPDX-License-Identifier: Apache-2.0
"""Programs of torch.export, compiled ahead of time."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torchtpu_compile.ahead import aot, load
from torchtpu_compile.errors import AOTFileError, GraphError
from torchtpu_compile.export import export_stablehlo


class Counting(nn.Module):
    """Writes a buffer and an argument, and returns sizes and values in containers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, input: torch.Tensor, *, seen: torch.Tensor) -> dict[str, Any]:
        self.calls.add_(1)
        seen.add_(input.sum())
        return {"y": self.layer(input).relu(), "more": (input.shape[0], [None, self.calls * 2])}


def exported(**more: Any) -> torch.export.ExportedProgram:
    args, kwargs = (torch.randn(5, 4),), {"seen": torch.zeros(2)}
    return torch.export.export(Counting(), args, kwargs, **more)


def test_exported_program_runs_within_its_bounds(tmp_path: Path) -> None:
    sizes = {"input": {0: Dim("n", min=1, max=64)}, "seen": None}
    program = exported(dynamic_shapes=sizes)
    torch.export.save(program, tmp_path / "p.pt2")
    aot(torch.export.load(tmp_path / "p.pt2"), path=tmp_path / "m")
    made, model = load(tmp_path / "m"), program.module()
    for rows in (1, 5, 17, 64):
        x, seen, expected_seen = torch.randn(rows, 4), torch.ones(2), torch.ones(2)
        actual, expected = made(x, seen=seen), model(x, seen=expected_seen)
        torch.testing.assert_close(actual["y"].cpu(), expected["y"], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(seen, expected_seen, rtol=1e-4, atol=1e-5)
        size, (nothing, calls) = actual["more"]
        assert (size, nothing, calls.item()) == (rows, None, expected["more"][1][1].item())
    with pytest.raises(AOTFileError, match="s0 from 1 to 64"):
        made(torch.randn(65, 4), seen=torch.ones(2))


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_given_program_stays_as_it_was(tmp_path: Path) -> None:
    program = exported()
    before = program.graph_module.code
    aot(program, path=tmp_path / "m")
    assert program.graph_module.code == before
    assert {t.device.type for t in program.state_dict.values()} == {"cpu"}
    decomposed = program.run_decompositions()
    aot(decomposed, path=tmp_path / "d")
    x = torch.randn(5, 4)
    a, b = (load(tmp_path / name)(x, seen=torch.zeros(2)) for name in ("m", "d"))
    torch.testing.assert_close(a["y"], b["y"])


@dataclasses.dataclass
class Result:
    y: torch.Tensor
    scores: torch.Tensor | None = None


class Dataclass(nn.Module):
    def forward(self, x: torch.Tensor) -> Result:
        return Result(x + 1)


def test_fields_without_a_value_come_back_as_such(tmp_path: Path) -> None:
    torch.export.register_dataclass(Result, serialized_type_name="tests.Result")
    aot(torch.export.export(Dataclass(), (torch.ones(3),)), path=tmp_path / "m")
    made = load(tmp_path / "m")(torch.ones(3))
    assert type(made) is Result
    assert made.scores is None
    assert made.y.tolist() == [2.0] * 3


def test_stablehlo_of_an_exported_program() -> None:
    assert "stablehlo.dot_general" in export_stablehlo(exported())


def test_example_or_sizes_beside_a_program_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="has its own example and open sizes"):
        aot(exported(), (torch.randn(5, 4),), path=tmp_path / "m")
    with pytest.raises(TypeError, match="example arguments are missing"):
        aot(nn.ReLU(), path=tmp_path / "m")
    open_above = exported(dynamic_shapes={"input": {0: Dim.DYNAMIC}, "seen": None})
    with pytest.raises(GraphError, match="open without an upper bound"):
        aot(open_above, path=tmp_path / "m")


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_torchscript_is_refused_with_what_to_give() -> None:
    with pytest.raises(TypeError, match="Give the module that it was made from"):
        export_stablehlo(torch.jit.script(nn.ReLU()), (torch.ones(3),))


def test_array_in_place_of_a_tensor_is_named_on_one_line(tmp_path: Path) -> None:
    aot(nn.ReLU(), (torch.ones(30, 4),), path=tmp_path / "m")
    with pytest.raises(
        AOTFileError, match=r"was called with \(array\(\[\[1.*\.\.\.\)\. Call"
    ) as raised:
        load(tmp_path / "m")(torch.ones(30, 4).numpy())
    assert len(str(raised.value)) < 300
