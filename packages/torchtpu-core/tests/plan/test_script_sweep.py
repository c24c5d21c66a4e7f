# SPDX-License-Identifier: Apache-2.0
"""A script planned with several of its own options, for real."""

from __future__ import annotations

from torchtpu_core.cli import script_sweep
from torchtpu_core.plan.script_sweep import Tried, try_all, without_effect

SCRIPT = """
import argparse, os, torch
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int)
width = parser.parse_args().width
if width == 7:
    os.kill(os.getpid(), 9)
model = torch.nn.Linear(width, 512).to("tpu")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    model(torch.randn(64, width, device="tpu")).sum().backward()
    optimizer.step()
"""


def test_each_choice_is_planned_by_itself_and_a_failure_is_told(tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [str(script), "--target", "v5e:1x1", "--"]
    planned, wrong, killed = try_all(command, ["--width=256,x,7"])
    assert not killed.plan and "ended without a word" in killed.failure
    assert not wrong.plan
    assert wrong.failure.endswith("argument --width: invalid int value: 'x'")
    lines = planned.plan["hbm"]["lines"]
    parameters = [line["bytes"] for line in lines if line["category"] == "parameters"]
    assert sum(parameters) == (256 + 1) * 512 * 4


def test_process_that_cannot_start_is_told(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "torch.py").write_text("raise ImportError('torch is broken')")
    (tried,) = try_all([str(tmp_path / "train.py")], ["--width=1"])
    assert not tried.plan and "torch is broken" in tried.failure


def test_option_that_the_script_ignores_is_told() -> None:
    def tried(step_s: float, *options: str) -> Tried:
        hbm = {"peak_bytes": 1, "fits": True}
        plan = {"tokens_per_s": 0, "samples_per_s": 0, "step_s": step_s, "hbm": hbm}
        return Tried(options=options, plan=plan)

    every = [tried(a, f"--a={a}", *b) for a in (1.0, 2.0) for b in ((), ("--b",))]
    assert without_effect(every) == ["--b"]
    assert without_effect(every[:2]) == ["--b"]
    assert without_effect(every[:1]) == []
    failed = Tried(options=("--a=3",), plan={}, failure="no")
    assert without_effect([every[0], failed]) == []


def test_choice_that_is_over_is_told_while_others_are_planned(monkeypatch, capsys) -> None:
    hbm = {"peak_bytes": 1, "fits": True}
    plan = {"tokens_per_s": 0, "samples_per_s": 0, "step_s": 1.0, "hbm": hbm}

    def planned(command, sweeps):
        yield Tried(options=("--a=1",), plan=plan)
        assert capsys.readouterr().err == "1 of 2 choices are over: --a=1\n"
        yield Tried(options=("--a=2",), plan=plan)

    monkeypatch.setattr(script_sweep, "try_all", planned)
    script_sweep.show(["train.py"], ["--a=1,2"], None, None, "")
    assert "--a=2" in capsys.readouterr().err
