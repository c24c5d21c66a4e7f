# SPDX-License-Identifier: Apache-2.0
"""A rank that is killed is restarted, and training goes on from the last checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

JOB = Path(__file__).parent / "jobs" / "elastic.py"


def losses(folder: Path, fatal: int, victim: int = 1, phase: str = "step") -> list[str]:
    """What rank 0 printed, step by step; a repeated step counts once."""
    folder.mkdir()
    command = [sys.executable, "-c", "from torchtpu_core.cli.app import main; main()", "run"]
    command += ["--chips", "2", "--max-restarts", "1", str(JOB), str(folder), str(fatal)]
    command += [str(victim), phase]
    done = subprocess.run(
        command, env={**os.environ, "TORCH_TPU_CACHE_DIR": ""}, stdout=subprocess.PIPE,
        text=True, timeout=600, check=True,
    )  # fmt: skip
    said = [line for line in done.stdout.splitlines() if line.startswith("step ")]
    return sorted(set(said))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> list[str]:
    """The losses of a run that nothing interrupts."""
    found = losses(tmp_path_factory.mktemp("elastic") / "whole", -1)
    assert len(found) == 5
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "phase"), [(1, "step"), (0, "step"), (1, "checkpoint")], ids=lambda value: str(value)
)
def test_killed_rank_is_restarted_and_the_loss_curve_stays_the_same(whole, tmp_path, victim, phase):
    assert losses(tmp_path / "killed", 3, victim, phase) == whole
