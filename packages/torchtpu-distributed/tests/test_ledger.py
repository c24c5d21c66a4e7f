# SPDX-License-Identifier: Apache-2.0
"""The ledger: order, completion, and waits that end with a failure."""

from __future__ import annotations

import threading

import pytest
from torch import distributed as dist
from torchtpu_distributed.errors import PeerLostError
from torchtpu_distributed.ledger import Failure, Ledger
from torchtpu_distributed.pending import Pending


class Token:
    """Stands in for an array that is computed when told, or fails."""

    def __init__(self, error: Exception | None = None, ready: bool = True) -> None:
        self.error = error
        self.computed = threading.Event()
        if ready:
            self.computed.set()

    def block_until_ready(self) -> None:
        self.computed.wait(timeout=10)
        if self.error is not None:
            raise self.error

    def is_ready(self) -> bool:
        return self.computed.is_set()


def collective(seq: int = 1) -> Pending:
    """A collective of two ranks."""
    return Pending(group="0", ranks=(0, 1), seq=seq, what="all_reduce", line="a.py:1", timeout_s=10)


@pytest.fixture
def ledger():
    made = Ledger()
    yield made
    made.stop(1.0)


def test_run_launches_in_order_and_returns_results(ledger):
    order = []
    for seq in (1, 2, 3):
        pending = collective(seq)
        ledger.begin(pending)
        token = Token()
        results = ledger.run(pending, lambda seq=seq, token=token: [order.append(seq), token])
        assert results[-1] is token
    assert order == [1, 2, 3]
    assert ledger.drain(5.0)


def test_collective_is_pending_until_its_token_is_ready(ledger):
    pending, token = collective(), Token(ready=False)
    ledger.begin(pending)
    ledger.run(pending, lambda: [token])
    assert ledger.pending() == [pending] and not pending.done
    token.computed.set()
    assert ledger.drain(5.0) and pending.done


def test_failure_ends_a_launch_that_never_returns(ledger):
    pending, never = collective(), threading.Event()
    ledger.begin(pending)
    threading.Timer(0.1, ledger.fail, [Failure(PeerLostError, "rank 1 is gone")]).start()
    with pytest.raises(PeerLostError, match="rank 1 is gone"):
        ledger.run(pending, lambda: [never.wait(timeout=5)])
    never.set()


def test_failure_ends_a_wait_for_an_array_behind_a_collective(ledger):
    pending, token = collective(), Token(ready=False)
    ledger.begin(pending)
    ledger.run(pending, lambda: [token])
    threading.Timer(0.1, ledger.fail, [Failure(PeerLostError, "rank 1 is gone")]).start()
    with pytest.raises(PeerLostError):
        ledger.wait_for(Token(ready=False))
    token.computed.set()


def test_wait_for_an_array_without_collectives_raises_its_own_error(ledger):
    with pytest.raises(KeyError):
        ledger.wait_for(Token(KeyError("its own")))


def test_transport_error_is_kept_for_the_watch(ledger):
    told = threading.Event()
    ledger.on_trouble = told.set
    pending = collective()
    ledger.begin(pending)
    ledger.run(pending, lambda: [Token(OSError("connection closed"))])
    assert told.wait(timeout=5)
    assert "connection closed" in pending.trouble


def test_nothing_begins_after_a_failure_and_the_first_one_counts(ledger):
    ledger.fail(Failure(PeerLostError, "first"))
    ledger.fail(Failure(PeerLostError, "second"))
    with pytest.raises(PeerLostError, match="first"):
        ledger.begin(collective())


def test_verdict_of_the_watch_is_raised_instead_of_an_error_of_the_store(ledger):
    failure = Failure(PeerLostError, "rank 1 is gone")
    teller = threading.Timer(0.1, ledger.fail, [failure])
    teller.start()
    with (
        pytest.raises(PeerLostError, match="rank 1 is gone"),
        ledger.verdict_on(dist.DistNetworkError),
    ):
        raise dist.DistNetworkError("silent for 9 s")
    teller.join()
