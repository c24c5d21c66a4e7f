# SPDX-License-Identifier: Apache-2.0
"""A rank that trains without a process group is told so, once, and others are not."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., list[subprocess.CompletedProcess[Any]]]


def test_ranks_that_make_no_group_are_told_once(run_scripts: Run) -> None:
    """Many steps, one warning on each rank, with its number."""
    for rank, outcome in enumerate(run_scripts("unjoined.py", "tpu")):
        assert outcome.returncode == 0, outcome.stderr
        assert outcome.stderr.count(f"rank {rank} of 2 trains alone: the launcher set") == 1


def test_members_that_call_no_collective_are_told_once(run_scripts: Run) -> None:
    """A library that does not look for the group that the script made leaves it unused."""
    for rank, outcome in enumerate(run_scripts("unjoined.py", "tpu", "join")):
        assert outcome.returncode == 0, outcome.stderr
        assert outcome.stderr.count(f"rank {rank} of 2 trains alone: after 10") == 1
        assert "unjoined.py:" in outcome.stderr.partition("trains alone")[0].splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "size"),
    [(["tpu"], 1), (["cpu"], 2), (["tpu", "join", "reduce"], 2)],
    ids=["one process", "cpu", "members"],
)
def test_others_are_not_told(run_scripts: Run, arguments: list[str], size: int) -> None:
    """Neither single processes, nor who trains on the CPU, nor members that use their group."""
    for outcome in run_scripts("unjoined.py", *arguments, size=size):
        assert outcome.returncode == 0, outcome.stderr
        assert "trains alone" not in outcome.stderr
