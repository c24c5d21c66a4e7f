# SPDX-License-Identifier: Apache-2.0
"""A rank that destroys a group which others still use is named, with its line and their call."""

from __future__ import annotations

import pytest

SCRIPT = "destroyed_group.py"
FAILED = (1, 3)  # 1 if a thread of gloo's still waits and the process is ended


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("", "all_reduce op=sum of float32[4], number 2 of group"),
        pytest.param("host", "all_reduce of CPU tensors", marks=pytest.mark.slow),
        ("message", "recv from group rank 1"),
    ],
)
def test_all_ranks_name_the_one_that_destroyed_a_group_others_use(run_scripts, call, what):
    for outcome in run_scripts(SCRIPT, "goes_on", call):
        assert outcome.returncode in FAILED, outcome.stderr
        assert "ERROR CollectiveMismatchError: rank 1" in outcome.stdout
        assert "destroyed the process group at " in outcome.stdout
        assert "destroyed_group.py:21 in leave" in outcome.stdout
        assert what in outcome.stdout and "in go_on" in outcome.stdout


def test_rank_that_destroyed_a_group_others_use_ends_with_the_same_report(run_scripts):
    survivor, left = run_scripts(SCRIPT, "stays")
    assert survivor.returncode in FAILED and left.returncode == 1, left.stderr
    assert "destroyed_group.py:21 in leave" in survivor.stdout
    assert "CollectiveMismatchError: " in left.stderr and "in go_on" in left.stderr


def test_rank_that_others_wait_for_cannot_destroy_the_group(run_scripts):
    for outcome in run_scripts(SCRIPT, "waited_for"):
        assert outcome.returncode in FAILED, outcome.stderr
        assert "ERROR CollectiveMismatchError: rank 1" in outcome.stdout
        assert "destroyed_group.py:21 in leave" in outcome.stdout and "in go_on" in outcome.stdout


def test_rank_that_destroyed_a_group_because_of_an_error_is_named_with_it(run_scripts):
    survivor, failed = run_scripts(SCRIPT, "fails")
    assert "ERROR PeerLostError: rank 1" in survivor.stdout
    assert "after ValueError: the loss is not finite" in survivor.stdout
    assert "ValueError: the loss is not finite" in failed.stderr and failed.returncode == 1
    assert "CollectiveMismatchError" not in failed.stderr


def test_rank_that_destroyed_the_world_is_named_with_its_line_on_all_others(run_scripts):
    first, _, third = run_scripts(SCRIPT, "world", size=3)
    for outcome in (first, third):
        assert "ERROR PeerLostError: rank 1" in outcome.stdout, outcome.stdout
        assert "destroyed_group.py:21 in leave" in outcome.stdout
        assert "in go_on" in outcome.stdout


def test_rank_outside_the_destroyed_group_hears_of_it(run_scripts):
    for outcome in run_scripts(SCRIPT, "goes_on", size=3):
        assert outcome.returncode in FAILED, outcome.stderr
        assert "destroyed_group.py:21 in leave" in outcome.stdout, outcome.stdout


def test_group_may_be_destroyed_while_another_rank_waits_for_what_both_have_called(run_scripts):
    for outcome in run_scripts(SCRIPT, "after"):
        assert outcome.stdout == "no error [2.0, 2.0, 2.0, 2.0]\n", outcome.stderr
