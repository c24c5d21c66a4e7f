# SPDX-License-Identifier: Apache-2.0
"""A process that is forked from a rank is no rank: it ends by itself, and calls nothing."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("deed", ["ends", "leaves"])
def test_forked_process_ends_and_the_ranks_go_on(run_scripts, deed):
    for outcome in run_scripts("forked.py", deed):
        assert outcome.returncode == 0, outcome.stderr
        assert outcome.stdout.splitlines() == ["FORK 0: ", "FORK 0: ", "SUM 4.0"]


def test_what_a_forked_process_calls_is_refused_at_once(run_scripts):
    for rank, outcome in enumerate(run_scripts("forked.py", "calls")):
        assert outcome.returncode == 0, outcome.stderr
        *said, total = outcome.stdout.splitlines()
        assert total == "SUM 4.0"
        forks = "\n".join(said).split("FORK 0: ")[1:]
        assert len(forks) == 2, outcome.stdout
        for lines in map(str.splitlines, forks):
            wanted = f"CollectiveError: this process was forked from rank {rank}"
            assert len(lines) == 6 and all(line.startswith(wanted) for line in lines), lines
