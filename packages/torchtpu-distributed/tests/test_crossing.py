# SPDX-License-Identifier: Apache-2.0
"""Ranks that use groups crosswise are told so, and only if nothing can end their waits."""

from __future__ import annotations

import pytest

SCRIPT = "crosswise.py"
FAILED = (1, 3)  # 1 if a thread was still inside gloo and the process was ended


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_ranks_that_wait_in_a_circle_fail_long_before_the_timeout(run_scripts, size):
    outcomes = run_scripts(SCRIPT, "alone", "600", size=size, timeout_s=60)
    for outcome in outcomes:
        assert outcome.returncode in FAILED, outcome.stderr
        assert "ERROR CollectiveMismatchError: The ranks wait for each other" in outcome.stdout
        for rank in range(size):
            assert f"rank {rank} waits for rank {(rank + 1) % size} in all_reduce" in outcome.stdout
        assert outcome.stdout.count("crosswise.py:") == size


def test_circle_that_another_thread_might_end_is_named_when_the_time_is_up(run_scripts):
    said = "".join(outcome.stdout for outcome in run_scripts(SCRIPT, "threads", "8"))
    assert "CollectiveMismatchError" not in said
    circle = said.partition("The ranks wait for each other:")[2]
    assert "rank 0 waits for rank 1 in all_reduce" in circle and "crosswise.py:" in circle
    assert "rank 1 waits for rank 0 in all_reduce" in circle
    assert "has not come to it (its last one was all_reduce" in said
    assert "; it waits in all_reduce op=sum of float32[4], number 2 of group" in said


def test_circle_that_another_thread_ends_is_no_error(run_scripts):
    for outcome in run_scripts(SCRIPT, "later"):
        assert outcome.returncode == 0, f"{outcome.stdout}\n{outcome.stderr}"
        assert "no error" in outcome.stdout
