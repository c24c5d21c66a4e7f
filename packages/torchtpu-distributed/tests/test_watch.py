# SPDX-License-Identifier: Apache-2.0
"""The watch: what it says about a rank that is lost."""

from __future__ import annotations

import pytest
from torch import distributed as dist
from torchtpu_distributed import _C, processes
from torchtpu_distributed.board import Board
from torchtpu_distributed.errors import PeerLostError
from torchtpu_distributed.ledger import Ledger
from torchtpu_distributed.pending import Pending
from torchtpu_distributed.watch import Watch


def test_last_word_of_a_rank_that_ends_just_after_the_board_was_read_counts(monkeypatch):
    store, ledger = dist.HashStore(), Ledger()

    def speak_and_end(_process: processes.Process) -> bool:
        Board(store, 1).post("gone", reason="it ended", positions={})
        return False

    monkeypatch.setattr(processes, "is_running", speak_and_end)
    pending = Pending(group="0", ranks=(0, 1), seq=1, what="reduce", line="a:1", timeout_s=10)
    ledger.begin(pending)
    watch = Watch(store, 0, {r: processes.this_process(r, "") for r in (0, 1)}, ledger)
    try:
        with pytest.raises(PeerLostError, match="is gone: it ended"):
            ledger.wait_for_verdict()
    finally:
        watch.stop()
        ledger.stop(1.0)


@pytest.mark.parametrize("has_come", [True, False])
def test_sigterm_during_a_transfer_says_only_which_rank_is_late(monkeypatch, capsys, has_come):
    store, ledger = dist.HashStore(), Ledger()
    pending = Pending(group="0", ranks=(0, 1), seq=1, what="reduce", line="a:1", timeout_s=10)
    watch = Watch(store, 0, {r: processes.this_process(r, "") for r in (0, 1)}, ledger)
    watch.stop()
    Board(store, 1).beat({"0": (1, pending.name)} if has_come else {}, "", "")
    ledger.begin(pending)
    monkeypatch.setattr(_C, "end_by_sigterm", lambda: None)
    watch._end_by_sigterm()
    ledger.stop(1.0)
    said = capsys.readouterr().err
    assert not said if has_come else "rank 1" in said and "has not come to it" in said
