# SPDX-License-Identifier: Apache-2.0
"""A rank that SIGTERM ends while it is in no collective says whether others waited for it."""

from __future__ import annotations

import signal

import pytest

SCRIPT = "ended_by_sigterm.py"
#: What rank 1 says at its end, by what it did.
SAID = {
    "leaves": ("CollectiveMismatchError: rank 1", "destroyed the process group at ", "in leave"),
    "late": ("rank 1 is ended by SIGTERM at ", "in compute and has not come to all_reduce"),
}


@pytest.mark.parametrize("how", SAID)
def test_rank_that_others_waited_for_says_so(run_scripts, how):
    first, ended = run_scripts(SCRIPT, how)
    assert first.returncode in (1, 3), first.stderr  # 1 if a thread of gloo's still waits
    assert ended.returncode == -signal.SIGTERM
    for words in (*SAID[how], "number 2 of group", "in go_on"):
        assert words in ended.stderr, ended.stderr


def test_rank_that_nobody_waited_for_says_nothing(run_scripts):
    _, ended = run_scripts(SCRIPT, "does_all")
    assert ended.returncode == -signal.SIGTERM and not ended.stderr


def test_rank_that_sigterm_ended_is_named_with_the_signal(run_scripts):
    first, ended = run_scripts(SCRIPT, "alone")
    assert ended.returncode == -signal.SIGTERM
    assert "ERROR PeerLostError: rank 1" in first.stdout
    assert "it was ended by SIGTERM" in first.stdout
