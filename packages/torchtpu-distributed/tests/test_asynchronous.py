# SPDX-License-Identifier: Apache-2.0
"""Asynchronous collectives: the thread that waits at once runs them; without one, another does."""

from __future__ import annotations

import torch


def drawn() -> list[torch.Tensor]:
    """A tensor of small integers per rank."""
    return list(torch.randint(0, 9, (2, 5), generator=torch.Generator().manual_seed(3)).float())


def test_collective_is_run_by_the_thread_that_waits_for_it_at_once(pair):
    each = drawn()
    for total, others in pair("asynchronous.run_by_who_waits", each=each):
        assert torch.equal(total, 2**9 * (each[0] + each[1]))
        assert others <= 1  # the one whose future was asked for


def test_collective_that_nobody_waits_for_is_run(pair):
    each = drawn()
    for results in pair("asynchronous.run_though_nobody_waits", each=each):
        for i, result in enumerate(results, 1):
            assert torch.equal(result, i * (each[0] + each[1]))
