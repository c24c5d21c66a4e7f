# SPDX-License-Identifier: Apache-2.0
"""Futures of works that fail."""

from __future__ import annotations

import pytest
import torch
from torchtpu_distributed import _C
from torchtpu_distributed.errors import PeerLostError


def _failed() -> torch.futures.Future[list[torch.Tensor]]:
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    _C.fail_future(future, PeerLostError("rank 1 is gone"))
    return future


def test_failed_future_raises_its_error() -> None:
    future = _failed()
    assert future.done()
    for read in (future.wait, future.value):
        with pytest.raises(PeerLostError, match="rank 1 is gone"):
            read()


def test_what_follows_a_failed_future_fails_too() -> None:
    followed = _failed().then(lambda done: done.value())
    with pytest.raises(Exception, match="rank 1 is gone"):
        followed.wait()
