# SPDX-License-Identifier: Apache-2.0
"""Files of models with open sizes: one file for every size within declared bounds."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torchtpu_compile import ahead_sizes
from torchtpu_compile.ahead import aot, load
from torchtpu_compile.errors import AOTFileError, GraphError


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.cpu(), expected.detach().cpu(), rtol=1e-4, atol=1e-5)


def test_every_size_within_the_bounds_runs_and_others_are_refused(tmp_path: Path) -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True).eval()
    open_sizes = ({0: Dim("batch", max=16), 1: Dim("length", min=2, max=200)},)
    aot(model, (torch.randn(2, 5, 8),), path=tmp_path / "m", dynamic_shapes=open_sizes)
    made = load(tmp_path / "m")
    assert len(made.manifest["programs"]) == 4  # lengths up to 16, 64, 128 and 200
    for batch, length in ((1, 2), (2, 16), (3, 17), (16, 200), (7, 65), (2, 64)):
        x = torch.randn(batch, length, 8)
        close(made(x), model(x))
    for batch, length in ((17, 3), (2, 201), (2, 1)):
        with pytest.raises(AOTFileError, match=r"\[s0, s1, 8\]\) with s0 .* s1 from 2 to 200, but"):
            made(torch.randn(batch, length, 8))


def test_no_program_is_compiled_for_another_size_of_a_bucket(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Softmax(0))
    dims = ({0: Dim("n", max=16)},)
    aot(model, (torch.randn(5, 4),), path=tmp_path / "m", dynamic_shapes=dims)
    made = load(tmp_path / "m")
    made(torch.randn(3, 4).to("tpu")).cpu()
    before = torch.tpu.counters()["compiles"]
    for size in (5, 9, 16):
        x = torch.randn(size, 4)
        close(made(x.to("tpu")), model(x))
    assert torch.tpu.counters()["compiles"] == before


class Marked(nn.Module):
    """Lengths that a layer loops over, sizes in results, slices, and results that are views."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.drop = nn.Embedding(30, 6), nn.Dropout(0.2)
        self.layer = nn.LSTM(6, 5, batch_first=True)

    def forward(self, ids: torch.Tensor, w: torch.Tensor, *, scale: torch.Tensor) -> dict[str, Any]:
        y = self.layer(self.embed(ids))[0]
        last = self.drop(y)[:, -3:] * scale
        return {"last": last, "count": ids.shape[1] * 2 + 1, "turned": (w * 2).t(), "w": w[1:]}


def test_marked_dimensions_are_open_and_draw_as_eager_does(tmp_path: Path) -> None:
    model, scale = Marked(), torch.randn(2, 3, 1)
    ids, w = torch.randint(0, 30, (2, 9)), torch.randn(4, 3)
    torch._dynamo.mark_dynamic(ids, 1, min=4, max=40)
    torch._dynamo.mark_dynamic(w, 0, min=2, max=9)
    aot(model, (ids, w), {"scale": scale}, path=tmp_path / "m")
    made, on_device = load(tmp_path / "m"), model.to("tpu")
    for length, rows in ((4, 2), (9, 3), (17, 9), (40, 4)):
        given = (torch.randint(0, 30, (2, length)).to("tpu"), torch.randn(rows, 3).to("tpu"))
        torch.manual_seed(length)
        found = made(*given, scale=scale)
        torch.manual_seed(length)
        expected = on_device(*given, scale=scale.to("tpu"))
        assert found.pop("count") == expected.pop("count")
        for name, value in expected.items():
            close(found[name], value)
            assert found[name].stride() == value.stride(), name
    with pytest.raises(AOTFileError, match="from 4 to 40"):
        made(ids[:, :3], w, scale=scale)


def test_statistics_are_of_true_sizes(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1))
    dims = ({0: Dim("batch", max=8), 2: Dim("height", min=4, max=64)},)
    aot(model, (torch.randn(2, 3, 8, 8),), path=tmp_path / "m", dynamic_shapes=dims)
    made = load(tmp_path / "m")
    for batch, height in ((1, 8), (4, 33), (8, 64)):
        x = torch.randn(batch, 3, height, 8)
        close(made(x), model(x))
    for name, tensor in model.state_dict().items():
        close(made.state_dict()[name], tensor)


class Fills(nn.Module):
    """Writes its argument, whose size is open."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x.sum(0)


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_argument_of_open_size_is_written(tmp_path: Path, device: str) -> None:
    dims = ({0: Dim("n", max=20)},)
    aot(Fills(), (torch.ones(3, 2),), path=tmp_path / "m", dynamic_shapes=dims)
    made = load(tmp_path / "m")
    for size in (4, 19):
        x = torch.zeros(size, 2, device=device)
        close(made(x), torch.full((2,), float(size)))
        close(x, torch.ones(size, 2))


class Halves(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[:, ::2] + y


def test_size_that_another_one_tells_is_compared(tmp_path: Path) -> None:
    n = Dim("n", max=9)
    path = tmp_path / "m"
    aot(Halves(), (torch.ones(3, 4), torch.ones(2)), path=path, dynamic_shapes=({1: 2 * n}, {0: n}))
    made, x = load(path), torch.randn(3, 10)
    close(made(x, x[0, :5]), Halves()(x, x[0, :5]))
    with pytest.raises(AOTFileError, match=r"float32\[3, 2\*s0\], float32\[s0\]\) with s0"):
        made(torch.randn(3, 9), torch.randn(5))


@pytest.mark.parametrize("least", [1, 2])
def test_multiple_of_a_size_has_the_bounds_of_its_declaration(tmp_path: Path, least: int) -> None:
    path, dims = tmp_path / "m", ({1: 4 * Dim("n", min=least, max=6)},)
    aot(nn.AvgPool1d(4), (torch.ones(3, 8),), path=path, dynamic_shapes=dims)
    made = load(path)
    for size in (4 * least, 24):
        x = torch.randn(3, size)
        close(made(x), nn.AvgPool1d(4)(x))
    for size in (4 * (least - 1), 28):
        with pytest.raises(AOTFileError, match=f"s0 from {least} to 6"):
            made(torch.randn(3, size))


class Values(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svdvals(x)


@pytest.mark.parametrize(
    ("model", "dims", "message"),
    [
        (nn.ReLU(), {0: Dim("n")}, "dimension 0 of the argument input is open without an upper"),
        (nn.Linear(4, 4), {1: Dim("n", max=9)}, r"specialized it to be a constant \(4\)"),
        (Values(), {0: Dim("n", max=9)}, r"cannot run at padded sizes.*in forward"),
    ],
)
def test_size_that_cannot_be_open_is_refused(tmp_path: Path, model, dims, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        aot(model, (torch.ones(4, 4),), path=tmp_path / "m", dynamic_shapes=(dims,))


def test_form_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m"
    aot(nn.ReLU(), (torch.ones(4),), path=path, dynamic_shapes=({0: Dim("n", max=9)},))
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(parts["manifest.json"])
    manifest["call"]["leaves"][0]["size"] = [["__import__", "s0"]]
    parts["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    made = load(path)
    with pytest.raises(ValueError, match="'__import__' is no function of sizes"):
        made(torch.ones(4))


def test_programs_are_few_and_end_at_the_bounds() -> None:
    assert ahead_sizes._buckets(2, 1024) == [16, 64, 128, 256, 512, 1024]
    assert ahead_sizes._buckets(1, 100) == [16, 64, 100]
    assert ahead_sizes._buckets(20, 20) == [20]
