# SPDX-License-Identifier: Apache-2.0
"""The examples learn, save what they promise, and share a batch among processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import _common
import pytest
import torch
import train_digits
import train_gpt

EXAMPLES = Path(_common.__file__).parent
SMALL_GPT = ["--layers=2", "--width=32", "--heads=2", "--context=32"]
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def test_digits_on_cpu_reaches_97_percent_and_saves_its_curve(tmp_path: Path) -> None:
    train_digits.main(["--out", str(tmp_path)])
    run = _common.load(tmp_path / "digits-cpu.json")
    assert run.metrics["test accuracy"] >= 0.97
    assert len(run.losses) == 200
    assert (tmp_path / "digits-cpu.png").read_bytes().startswith(PNG_SIGNATURE)


def test_gpt_with_bf16_and_dropout_learns_and_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--steps=60", "--bf16", "--dropout=0.1", "--sample=10", f"--out={tmp_path}"]
    train_gpt.main([*SMALL_GPT, *options])
    losses = _common.load(tmp_path / "gpt-cpu.json").losses
    # At first all 256 bytes are equally likely: log 256 = 5.5 nats.
    assert losses[0] == pytest.approx(torch.log(torch.tensor(256.0)).item(), abs=0.2)
    assert losses[-1] < losses[0] - 0.5
    assert "def __init__(self" in capsys.readouterr().out


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_gpt_in_two_processes_has_the_losses_of_one(tmp_path: Path, device: str) -> None:
    size = [*SMALL_GPT, "--steps=10", "--sample=0", f"--device={device}"]
    script = [str(EXAMPLES / "train_gpt.py"), *size]
    train_gpt.main([*script[1:], f"--out={tmp_path / 'one'}"])
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*launch, *script, f"--out={tmp_path / 'two'}"], check=True)
    one, two = (_common.load(tmp_path / n / f"gpt-{device}.json").losses for n in ("one", "two"))
    torch.testing.assert_close(torch.tensor(two), torch.tensor(one), rtol=0, atol=1e-5)


def test_batches_of_all_ranks_make_up_the_batch_of_one_process() -> None:
    args = train_gpt.arguments(["--batch=6", "--context=4"])
    cpu = torch.device("cpu")
    whole = train_gpt.Batches(args, 0, 1).next(cpu)
    shares = [train_gpt.Batches(args, rank, 3).next(cpu) for rank in range(3)]
    for part in range(2):
        assert torch.equal(torch.cat([share[part] for share in shares]), whole[part])
    assert torch.equal(whole[0][:, 1:], whole[1][:, :-1])


def test_batch_that_does_not_divide_among_ranks_is_refused() -> None:
    with pytest.raises(SystemExit, match="--batch 5 does not divide among 2 processes"):
        train_gpt.Batches(train_gpt.arguments(["--batch=5"]), 0, 2)


def test_parameter_groups_decay_matrices_only_and_hold_tied_weights_once() -> None:
    model = train_gpt.GPT(layers=1, width=8, heads=2, context=4, dropout=0.0)
    decayed, plain = (group["params"] for group in train_gpt.parameter_groups(model, 0.1))
    assert {p.dim() for p in decayed} == {2}
    assert {p.dim() for p in plain} == {1}
    assert sum(p is model.token.weight for p in decayed) == 1
    assert len(decayed) + len(plain) == len(list(model.parameters()))


def test_learning_rate_warms_up_then_falls_to_a_tenth() -> None:
    factors = [train_gpt.learning_rate_factor(step, 200) for step in range(201)]
    assert factors[0] == pytest.approx(1 / train_gpt.WARM_UP_STEPS)
    assert factors[train_gpt.WARM_UP_STEPS] == pytest.approx(1.0)
    assert factors[200] == pytest.approx(0.1)
    assert factors[20:] == sorted(factors[20:], reverse=True)


def test_shuffled_batches_cover_an_epoch_without_repeats() -> None:
    batches = _common.shuffled_batches(10, 3, torch.Generator().manual_seed(0))
    first, second = ([next(batches) for _ in range(3)] for _ in range(2))
    for epoch in (first, second):
        rows = torch.cat(epoch).tolist()
        assert len(rows) == len(set(rows)) == 9
    assert [b.tolist() for b in first] != [b.tolist() for b in second]


def test_sample_does_not_depend_on_what_lies_behind_the_cursor() -> None:
    torch.manual_seed(0)
    model = train_gpt.GPT(layers=1, width=8, heads=2, context=8, dropout=0.0)
    short, long = (
        train_gpt.sample(model, b"def", train_gpt.arguments([f"--sample={n}", "--context=8"]))
        for n in (4, 20)
    )
    assert len(short) == 7
    assert long.startswith(short)
