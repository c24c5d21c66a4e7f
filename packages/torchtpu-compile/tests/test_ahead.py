# SPDX-License-Identifier: Apache-2.0
"""Models compiled ahead of time into a file."""

from __future__ import annotations

import json
import random
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn
from torchtpu_compile import ahead_report, weights_file
from torchtpu_compile.ahead import aot, load
from torchtpu_compile.errors import AOTFileError, CompileOptionError
from torchtpu_core import xla_tpu
from torchtpu_core.errors import MissingExtraError
from torchtpu_core.runtime.current import target
from torchtpu_core.targets import libtpu_installed


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.norm(self.first(x))
        return {"y": y, "scaled": y * scale}


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, nn.Module, tuple[torch.Tensor, ...], dict[str, object]]:
    model, args = Pair().eval(), (torch.randn(5, 4), torch.tensor([2.0]))
    path = tmp_path / "pair.tpu"
    report = aot(model, args, path=path)
    return path, model, args, report


def rewritten(path: Path, **changes: object) -> None:
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    manifest = {**json.loads(parts["manifest.json"]), **changes}
    parts["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def test_loaded_model_equals_cpu_eager_and_traces_nothing(made) -> None:
    path, model, args, report = made
    loaded = load(path)
    torch._dynamo.utils.counters.clear()
    actual, expected = loaded(*args), model(*args)
    assert actual.keys() == expected.keys()
    for key in expected:
        torch.testing.assert_close(actual[key].cpu(), expected[key], rtol=1e-4, atol=1e-5)
    assert not torch._dynamo.utils.counters["stats"]
    state = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    assert report["weight_bytes"] <= state
    assert report["input_bytes"] == 4 * (20 + 1)


def test_simulated_target_is_priced_by_the_simulator(tmp_path: Path) -> None:
    report = aot(
        nn.Linear(64, 64),
        (torch.ones(8, 64),),
        path=tmp_path / "m",
        target="v5p:2x2x1",
        compiler="simulator",
    )
    assert report["priced_by"] == "simulator"
    assert report["simulated_run_ps"] > 0


def test_file_for_another_target_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m"
    other = "v5p:2x2x1" if target().name != "v5p:2x2x1" else "v5e:2x2"
    aot(nn.ReLU(), (torch.ones(3),), path=path, target=other)
    with pytest.raises(AOTFileError, match=f"TORCH_TPU_TARGET={other}"):
        load(path)


def test_file_of_another_version_is_refused(made) -> None:
    rewritten(made[0], versions={"jax": "0.0.1"})
    with pytest.raises(AOTFileError, match=r"made with jax 0\.0\.1"):
        load(made[0])


@pytest.mark.parametrize("key", ("operands", "outputs", "returned"))
def test_manifest_that_does_not_fit_its_program_is_refused(made, key: str) -> None:
    rewritten(made[0], **{key: []})
    with pytest.raises(AOTFileError, match="its manifest cannot be read"):
        load(made[0])


def test_damaged_program_and_cut_off_file_are_refused(made) -> None:
    path = made[0]
    whole = path.read_bytes()
    rewritten(path, sha256=["0" * 64])
    with pytest.raises(AOTFileError, match="checksum"):
        load(path)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(AOTFileError, match="not a readable"):
        load(path)


def test_flipped_bit_anywhere_is_refused_or_has_no_effect(made) -> None:
    path, model, args, _ = made
    whole = path.read_bytes()
    expected = model(*args)["y"]
    places = random.Random(0)
    for _ in range(60):
        content = bytearray(whole)
        content[places.randrange(len(whole))] ^= 1 << places.randrange(8)
        path.write_bytes(content)
        try:
            actual = load(path)(*args)["y"]
        except AOTFileError:
            continue
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"versions": {"no-such-package": "1.0"}}, "none is installed"),
        ({"outputs": [[[5, 3], [3, 1], "float7"]]}, "manifest cannot be read"),
        ({"containers": ["?", [None]]}, "manifest cannot be read"),
        ({"programs": [[], []]}, "another number of programs"),
        ({"updates": [[["weight", 0], ["result", 9]]]}, "manifest cannot be read"),
    ],
)
def test_manifest_that_makes_no_sense_is_refused(made, changes, message: str) -> None:
    rewritten(made[0], **changes)
    with pytest.raises(AOTFileError, match=message):
        load(made[0])


def test_manifest_that_lacks_an_entry_is_refused(made) -> None:
    with zipfile.ZipFile(made[0]) as archive:
        format_ = json.loads(archive.read("manifest.json"))["format"]
        program = archive.read("program0.bin")
    with zipfile.ZipFile(made[0], "w") as archive:
        archive.writestr("manifest.json", json.dumps({"format": format_}))
        archive.writestr("program0.bin", program)
    with pytest.raises(AOTFileError, match="manifest lacks"):
        load(made[0])


@pytest.mark.parametrize("place", [20, -1])
def test_flipped_bit_in_the_weights_is_refused(made, place: int) -> None:
    weights = made[0].with_name("pair.tpu.safetensors")
    content = bytearray(weights.read_bytes())
    content[place] ^= 1
    weights.write_bytes(content)
    with pytest.raises(AOTFileError, match=r"pair\.tpu\.safetensors is"):
        load(made[0])


def test_weights_of_another_model_are_refused(made, tmp_path: Path) -> None:
    other = tmp_path / "other.tpu"
    aot(Pair().eval(), made[2], path=other)
    Path(f"{other}.safetensors").replace(f"{made[0]}.safetensors")
    with pytest.raises(AOTFileError, match="belongs to another program"):
        load(made[0])


def test_directory_of_the_file_is_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "one" / "m.tpu"
    aot(nn.ReLU(), (torch.ones(3),), path=path)
    assert torch.equal(load(path)(-torch.ones(3)).cpu(), torch.zeros(3))


def test_path_that_cannot_be_written_is_refused_before_compiling(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "m.tpu"):
        with pytest.raises(AOTFileError, match="cannot be written"):
            aot(None, (), path=path)  # type: ignore[arg-type]


def test_results_have_the_strides_of_the_model(tmp_path: Path) -> None:
    class Turned(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * 2).t()

    x = torch.randn(2, 3)
    aot(Turned(), (x,), path=tmp_path / "m")
    y = load(tmp_path / "m")(x)
    assert y.stride() == Turned()(x).stride()
    assert torch.equal(y.cpu(), x.t() * 2)


def test_arguments_of_other_sizes_are_refused(made) -> None:
    with pytest.raises(AOTFileError, match=r"\[6, 4\]"):
        load(made[0])(torch.randn(6, 4), torch.ones(1))


class Around(nn.Module):
    """Returns what is no result of a program, and takes what none reads."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([3.0]))

    def forward(self, data: dict[str, torch.Tensor], unread: torch.Tensor, *, factor: float = 1.0):
        x = data["x"]
        return {"given": x, "none": None, "list": [3, "text", (x * self.scale * factor, unread)]}


def test_arguments_and_plain_values_are_returned_as_they_are(tmp_path: Path) -> None:
    model, x, unread = Around(), torch.randn(3), torch.randn(2)
    aot(model, ({"x": x}, unread), {"factor": 2.0}, path=tmp_path / "m")
    loaded = load(tmp_path / "m")
    on_device = x.to("tpu")
    result = loaded({"x": on_device}, unread, factor=2.0)
    assert result["given"] is on_device
    assert result["none"] is None
    assert result["list"][:2] == [3, "text"]
    torch.testing.assert_close(result["list"][2][0].cpu(), (x * 6.0))
    assert torch.equal(result["list"][2][1].cpu(), unread)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (({"x": torch.ones(3)}, torch.ones(2)), {"factor": 4.0}),
        (({"x": torch.ones(3)}, torch.ones(2)), {}),
        (({"y": torch.ones(3)}, torch.ones(2)), {"factor": 2.0}),
        (([torch.ones(3)], torch.ones(2)), {"factor": 2.0}),
        (({"x": torch.ones(3)}, torch.ones(2).long()), {"factor": 2.0}),
    ],
)
def test_call_with_other_values_or_containers_is_refused(tmp_path: Path, args, kwargs) -> None:
    """A value of the example is part of the program: another one would be ignored."""
    aot(Around(), ({"x": torch.ones(3)}, torch.ones(2)), {"factor": 2.0}, path=tmp_path / "m")
    with pytest.raises(AOTFileError, match=r"\{'x': float32\[3\]\}, float32\[2\], factor=2\.0"):
        load(tmp_path / "m")(*args, **kwargs)


def test_attention_in_eval_mode_is_a_program(tmp_path: Path) -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    aot(model, (x,), path=tmp_path / "m")
    actual = load(tmp_path / "m")(x)
    torch.testing.assert_close(actual.cpu(), model(x).detach(), rtol=1e-4, atol=1e-5)


def test_weights_survive_their_file(tmp_path: Path) -> None:
    tensors = {
        "a": torch.randn(2, 3).bfloat16(),
        "b": torch.tensor(True),
        "c": torch.arange(4),
    }
    weights_file.write(tmp_path / "w", tensors)
    found = weights_file.read(tmp_path / "w")
    assert all(torch.equal(found[k], v) and found[k].dtype == v.dtype for k, v in tensors.items())
    (tmp_path / "w").write_bytes((tmp_path / "w").read_bytes()[:-3])
    with pytest.raises(AOTFileError, match="missing"):
        weights_file.read(tmp_path / "w")


def test_without_libtpu_the_simulator_prices_and_says_how_to_get_the_compiler(
    tmp_path: Path, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(ahead_report, "libtpu_installed", lambda: False)
    report = aot(nn.Linear(64, 64), (torch.ones(8, 64),), path=tmp_path / "m", target="v5p:2x2x1")
    assert report["priced_by"] == "simulator"
    assert "pip install 'torchtpu-core[tpu]'" in caplog.text


def test_compiler_that_is_asked_for_and_not_there_is_an_error(tmp_path: Path, monkeypatch) -> None:
    model, args = nn.Linear(4, 4), (torch.ones(2, 4),)
    monkeypatch.setattr(xla_tpu.compiling, "libtpu_installed", lambda: False)
    with pytest.raises(MissingExtraError, match=r"torchtpu-core\[tpu\]"):
        aot(model, args, path=tmp_path / "m", target="v5p:2x2x1", compiler="xla-tpu")
    with pytest.raises(CompileOptionError, match="Did you mean 'xla-tpu'"):
        aot(model, args, path=tmp_path / "m", target="v5p:2x2x1", compiler="xla_tpu")


@pytest.mark.skipif(not libtpu_installed(), reason="libtpu is optional")
def test_report_of_the_tpu_compiler_names_weights_and_lines(tmp_path: Path) -> None:
    report = aot(
        nn.Linear(256, 512), (torch.ones(128, 256),), path=tmp_path / "m", target="v5e:1x1"
    )
    assert report["priced_by"] == "xla-tpu"
    assert report["memory"]["argument_bytes"] >= report["weight_bytes"] + report["input_bytes"]
    names = {buffer["name"] for buffer in report["largest_buffers"]}
    assert {"weight", "input 0"} <= names
