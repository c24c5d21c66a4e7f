# SPDX-License-Identifier: Apache-2.0
"""Spec files: formats, bases, and what is said of wrong ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torchtpu_core.errors import SpecError
from torchtpu_core.workloads import read_spec, read_specs
from torchtpu_core.workloads.spec_files import MistakenSpec

GOOD = """
[hardware]
chip = "v6e"
[copy]
bytes = 1e6
"""


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_spec_in_toml_and_json_reads_the_same(tmp_path) -> None:
    toml = _write(tmp_path / "a.toml", GOOD)
    same = {"hardware": {"chip": "v6e"}, "copy": {"bytes": 1000000}}
    assert read_spec(toml) == read_spec(_write(tmp_path / "a.json", json.dumps(same)))


def test_spec_in_yaml_reads_the_same(tmp_path) -> None:
    pytest.importorskip("yaml", reason="the extra 'plan' is not installed")
    yaml = _write(tmp_path / "a.yaml", "hardware: {chip: v6e}\ncopy: {bytes: 1000000}\n")
    assert read_spec(yaml) == read_spec(_write(tmp_path / "a.toml", GOOD))


def test_base_is_overridden_key_by_key(tmp_path) -> None:
    _write(tmp_path / "models/m.toml", "rows = ['X']\n" + GOOD)
    over = "base = 'models/m.toml'\n[hardware]\ntopology = '4x4'\n"
    spec = read_spec(_write(tmp_path / "b.toml", over))
    assert (spec.hardware.chip, spec.hardware.topology, spec.rows) == ("v6e", "4x4", ())


def test_base_that_names_itself_raises(tmp_path) -> None:
    with pytest.raises(SpecError, match="its own base"):
        read_spec(_write(tmp_path / "a.toml", "base = 'a.toml'\n" + GOOD))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("bytes", "byte"), "did you mean 'bytes'"),
        (GOOD.replace("1e6", "'many'"), "copy.bytes is of type float"),
        (GOOD.replace("1e6", "-1e6"), "copy.bytes is a number above 0"),
        (GOOD.replace("1e6", "inf"), "copy.bytes is a number above 0"),
        (GOOD + "[parallel]\ntensor=-2", "parallel.tensor is a number of at least 0"),
        ("[hardware]\n[copy]\nbytes=1.0", "lacks the key 'chip'"),
        ("[hardware]\nchip='v6e'\n", "exactly one of"),
        ("= 3", "cannot be read as a spec"),
        (GOOD + "[train]\nbatch_per_chip=1\nsequence=8\nremat='ful'", "did you mean 'full'"),
    ],
)
def test_wrong_spec_says_what_and_where(tmp_path, text, message) -> None:
    with pytest.raises(SpecError, match="(?i)" + message):
        read_spec(_write(tmp_path / "a.toml", text))


TRAINED = """
[hardware]
chip = "v5e"
topology = "4x4"
[model]
layers = 2
emb = 1024
heads = 8
mlp = 4096
[train]
batch_per_chip = 1
sequence = 2048
"""
GATHER = "[hardware]\nchip='v5e'\ntopology='4x4'\n[collective]\nkind='all_gather'\nbytes=1e6\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TRAINED.replace("v5e", "v5x"), r"a.toml.hardware.chip: 'v5x' is not a known chip"),
        (TRAINED.replace("4x4", "64x64"), r"a.toml.hardware.topology: v5e does not come in"),
        (TRAINED + "[parallel]\ntensor = 3", r"a.toml.parallel: 16 chips .* 3 does not divide"),
        (TRAINED + "dtype = 'fp16'", r"a.toml.train: dtype = 'fp16' is not known.*'bf16'"),
        (TRAINED + "optimizer = 'admw'", r"a.toml.train: optimizer = 'admw'.*'adamw'"),
        (TRAINED + "[metric]\nattention = 'half'", r"a.toml.metric: attention = 'half'.*causal"),
        ("[hardware]\nchip='v5e'\n[matmul]\nm=8\nk=8\nn=8\ndtype='fp16'", "a.toml.matmul: dtype"),
        (GATHER + "span = '8x8'", r"a.toml.collective: span = '8x8' is 64 chips"),
        (GATHER + "devices_share_links = 0", r"a.toml.collective: devices_share_links = 0"),
        (GATHER + "span = '2w'", r"a.toml.collective: span = '2w'.* such as 3w"),
        (GATHER + "span = '1'", r"a.toml.collective: span = '1' .* is one chip.* of 2 or more"),
        (GATHER.replace("topology='4x4'", ""), r"a.toml.collective: span = '' .* such as 2x2"),
        (
            "[hardware]\nchip='v5e'\n[attention]\nbatch=1\nheads=1\nsequence=8\nhead_dim=0",
            "head_dim",
        ),
        (TRAINED.replace("= 8", "= 8\nkv_heads = 3"), r"a.toml.model: kv_heads = 3 .*Nearest: 2"),
        (TRAINED.replace("= 8", "= 8\nglobal_every = 0"), r"a.toml.model: global_every = 0"),
        (TRAINED.replace("layers = 2", "layers = 1000000000"), "layers = 1000000000: use 100000"),
        (
            TRAINED + "gradient_accumulation_steps = 3",
            r"a.toml.train: gradient_accumulation_steps = 3 .* the 16 sequences .*Nearest: [24]",
        ),
        (TRAINED.replace("mlp = 4096", ""), r"a.toml.model: mlp is missing"),
        (TRAINED + "[model.experts]\ncount=4\nper_token=2\nmlp=8\nevery=0", "experts: every = 0"),
        (TRAINED + "[model.experts]\ncount=4\nper_token=8\nmlp=8", "per_token = 8 of .*1 to 4"),
        (TRAINED + "[parallel]\nexpert = 4", r"parallel.expert = 4 and no \[model.experts\]"),
        (TRAINED + "[parallel]\npipeline = 4", r"parallel.pipeline = 4 for 2 layers: use 2 or"),
        (TRAINED + "saved = ['mlpwu']", r"a.toml.train: saved holds 'mlpwu'.*'mlpwo'"),
    ],
)
def test_place_and_words_that_do_not_exist_are_named_with_file_and_key(
    tmp_path, text, message
) -> None:
    with pytest.raises(SpecError, match=message):
        read_spec(_write(tmp_path / "a.toml", text))


def test_group_without_a_slice_around_it_is_read(tmp_path) -> None:
    alone = GATHER.replace("topology='4x4'\n", "") + "span = '4w'"
    assert read_spec(_write(tmp_path / "a.toml", alone)).collective is not None


def test_types_have_the_names_of_other_libraries_too(tmp_path) -> None:
    said = "dtype = 'float32'\nquantization = 'fp8_full'"
    spec = read_spec(_write(tmp_path / "a.toml", TRAINED + said))
    assert spec == read_spec(
        _write(tmp_path / "b.toml", TRAINED + "dtype = 'f32'\nquantization = 'fp8'")
    )


def test_results_have_the_names_of_maxtext_too(tmp_path) -> None:
    said = "remat = 'custom'\nsaved = ['decoder_layer_input', 'query_proj', 'key_proj', 'mlpwo']"
    spec = read_spec(_write(tmp_path / "a.toml", TRAINED + said))
    assert spec.train.kept == {"qkv", "down"}


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("", 8),
        ("optimizer = 'AdamW'", 8),
        ("optimizer = 'lion'", 4),
        ("optimizer = 'sgd'", 0),
        ("optimizer = 'adafactor'\nstate_bytes = 4", 4),
    ],
)
def test_optimizer_says_the_bytes_of_its_state(tmp_path, said, kept) -> None:
    spec = read_spec(_write(tmp_path / "a.toml", TRAINED + said))
    assert spec.train is not None
    assert spec.train.state_bytes == kept


def test_global_batch_is_shared_out_to_the_chips_of_all_slices(tmp_path) -> None:
    text = """
    [hardware]
    chip = "v5e"
    topology = "4x4"
    slices = 2
    [model]
    layers = 1
    emb = 128
    heads = 1
    mlp = 128
    [train]
    sequence = 128
    global_batch = 48
    """
    train = read_spec(_write(tmp_path / "a.toml", text)).train
    assert train is not None
    assert train.batch_per_chip == 1.5


def test_specs_of_a_folder_are_found_by_row_and_by_name(tmp_path) -> None:
    _write(tmp_path / "one.toml", GOOD)
    _write(tmp_path / "deep/two.toml", "rows = ['A', 'B']\n" + GOOD)
    _write(tmp_path / "models/base.toml", GOOD)
    assert sorted(read_specs(tmp_path)) == ["A", "B", "one"]


def test_row_of_two_specs_is_a_mistake_and_the_others_are_read(tmp_path) -> None:
    for name in ("a.toml", "b.toml"):
        _write(tmp_path / name, f"rows = ['A', '{name}']\n" + GOOD)
    found = read_specs(tmp_path)
    assert isinstance(found["A"], MistakenSpec)
    assert "a.toml and by" in found["A"].unmodelled
    assert "keep one" in found["A"].unmodelled
    assert not isinstance(found["a.toml"], MistakenSpec)
