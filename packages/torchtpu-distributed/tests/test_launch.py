# SPDX-License-Identifier: Apache-2.0
"""`torchtpu run`: which slice and how many launchers, and a script that runs."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from torchtpu_core.errors import TargetError
from torchtpu_distributed import launch

REDUCE = Path(__file__).parent / "jobs" / "reduce_once.py"


@pytest.mark.parametrize(
    ("chips", "target", "expected"),
    [
        (1, None, ("v5e:1x1", 1, 1)),
        (3, None, ("v5e:2x2", 1, 3)),
        (8, None, ("v5e:2x4", 1, 8)),
        (16, None, ("v5e:4x4", 4, 4)),
        (8, "v5p:2x2x2", ("v5p:2x2x2", 2, 4)),
        (2, "cpu", ("cpu", 2, 1)),
    ],
)
def test_plan_fills_the_hosts_of_a_slice(chips, target, expected):
    found = launch.plan(chips, target)
    assert (found.target, found.hosts, found.per_host) == expected


@pytest.mark.parametrize(
    ("chips", "target", "words"),
    [
        (0, None, "--chips 1"),
        (5, "v5e:2x2", "has 4 devices"),
        (6, "v5e:4x4", "multiple of 4"),
        (2, "tpu", "torchrun"),
        (1000, None, "no v5e slice"),
    ],
)
def test_plan_that_does_not_fit_says_what_would(chips, target, words):
    with pytest.raises(TargetError, match=words):
        launch.plan(chips, target)


def test_hosts_meet_at_one_address():
    chosen = launch.Plan(target="v5e:4x4", hosts=2, per_host=4)
    first, second = launch.commands(chosen, ["train.py", "--lr", "1"], restarts=3, module=False)
    assert first == second
    assert first[-3:] == ["train.py", "--lr", "1"]
    assert first[first.index("--nnodes") + 1] == "2"
    assert first[first.index("--max-restarts") + 1] == "3"


def started(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from torchtpu_core.cli.app import main; main()", "run"]
    return subprocess.Popen(
        [*command, "--chips", "2", str(REDUCE), *words],
        env={**os.environ, "TORCH_TPU_CACHE_DIR": ""},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_run_starts_one_rank_per_chip():
    out, _ = (process := started("reduce")).communicate(timeout=120)
    assert process.returncode == 0
    said = [line for line in out.splitlines() if line.startswith("rank")]  # gloo talks too
    assert sorted(said) == [
        "rank 0 of 2 on v5e:2x2: 3.0",
        "rank 1 of 2 on v5e:2x2: 3.0",
    ]


def test_interrupt_ends_every_rank_of_a_run():
    process = started("wait")
    assert process.stdout is not None
    lines = (line for line in process.stdout if line.startswith("rank"))
    pids = [int(line.split()[-1]) for line in itertools.islice(lines, 2)]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode != 0
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()
