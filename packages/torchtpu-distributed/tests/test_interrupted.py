# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends a rank wherever it waits for another."""

from __future__ import annotations

import pytest

SLOW = pytest.mark.slow
FAST = ("init", "group", "host", "host_message", "reduction")
REST = ("later", "objects", "message", "barrier")


@pytest.mark.parametrize("where", [*FAST, *(pytest.param(each, marks=SLOW) for each in REST)])
def test_interrupted_rank_ends_while_another_lives(run_scripts, where):
    interrupted, _ = run_scripts("interrupted.py", where, kill_after=1)
    assert interrupted.returncode != 0
    assert "KeyboardInterrupt" in interrupted.stderr


def test_collector_in_whose_callbacks_ctrl_c_is_lost_rests_while_a_rank_starts(run_scripts):
    (outcome,) = run_scripts("collections_at_start.py", size=1)
    assert int(outcome.stdout) < 20, outcome.stderr
