# SPDX-License-Identifier: Apache-2.0
"""The beginning of a world: ranks that do not come are named."""

from __future__ import annotations

import ast
import os
import threading
from dataclasses import replace

import pytest
from torch import distributed as dist
from torchtpu_distributed import stores, world
from torchtpu_distributed.errors import PeerLostError, ProcessGroupError
from torchtpu_distributed.processes import Process, this_process


def test_ranks_that_do_not_come_are_named():
    store = dist.HashStore()
    store.set("who/2", this_process(2, "").encode())
    with pytest.raises(PeerLostError, match=r"rank\(s\) 1, 3 of 4 did not come .* in 0.2 s"):
        world.introduce(store, 0, 4, 0.2)


def test_ranks_that_come_are_known():
    store = dist.HashStore()
    store.set("who/1", this_process(1, "").encode())
    found = world.introduce(store, 0, 2, 5.0)
    assert [process.rank for process in found.values()] == [0, 1]


def test_world_after_a_restart_has_a_name_of_its_own_on_all_its_ranks(monkeypatch) -> None:
    store = dist.HashStore()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    before = stores.generation(store, 2)  # the other rank was killed before it came here
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    first, second, next_world = (stores.generation(store, 2) for _ in range(3))
    assert first == second
    assert len({before, first, next_world}) == 3


def test_rank_of_a_process_that_still_runs_is_refused_to_another(monkeypatch) -> None:
    store = dist.HashStore()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", os.getppid)
        stores.claim(store, 1)
    with pytest.raises(ProcessGroupError, match=rf"started twice: rank 1 \(process {os.getppid()}"):
        stores.claim(store, 1)


def test_rank_of_a_process_that_has_ended_is_taken_over() -> None:
    store = dist.HashStore()
    ended = replace(this_process(1, ""), started=1)
    store.set("ranks/0/1", ended.encode())
    stores.claim(store, 1)
    assert Process.decode(store.get("ranks/0/1")) == this_process(1, "")


def test_processes_that_were_ranks_may_change_their_numbers(monkeypatch) -> None:
    store = dist.HashStore()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", os.getppid)
        stores.claim(store, 1)
    for rank in (0, 0, 1):
        stores.claim(store, rank)
    assert Process.decode(store.get("ranks/0/1")) == this_process(1, "")


class _Silent:
    """A store that does not answer until it is told to."""

    def __init__(self) -> None:
        self.speaks = threading.Event()
        self.asked = 0

    def check(self, keys: list[str]) -> bool:
        self.asked += 1
        return self.speaks.wait()


def test_call_of_a_silent_store_is_given_up_and_none_is_made_after_it() -> None:
    store, waited = _Silent(), []
    answering = stores.Answering(store, lambda began_s: len(waited) >= 2 or waited.append(began_s))
    try:
        with pytest.raises(dist.DistNetworkError, match="silent for"):
            answering.check(["key"])
        with pytest.raises(dist.DistNetworkError, match="silent for"):
            answering.check(["other"])
        assert len(waited) == 2 and store.asked == 1
    finally:
        store.speaks.set()


def test_answers_of_a_store_and_its_errors_come_through() -> None:
    store = dist.HashStore()
    answering = stores.Answering(store, lambda began_s: False)
    part = answering.prefixed("part")
    part.set("key", "a")
    part.append("key", "b")
    assert (part.get("key"), store.get("part/key"), part.add("count", 3)) == (b"ab", b"ab", 3)
    assert part.check(["key"]) and not answering.check(["key"])
    assert part.delete_key("key") and not part.check(["key"])
    with pytest.raises(TypeError):
        part.set("key", 3)  # type: ignore[arg-type]


class _Counted:
    """A store whose connections are numbers."""

    def __init__(self) -> None:
        self.made = 0

    def clone(self) -> int:
        self.made += 1
        return self.made


def test_connection_is_used_again_unless_it_is_in_use_or_has_failed() -> None:
    connections = stores.Connections(_Counted())
    with connections.one() as first, connections.one() as second:
        assert (first, second) == (1, 2)
    with pytest.raises(RuntimeError), connections.one() as again:
        raise RuntimeError
    assert again in (1, 2)
    with connections.one() as kept, connections.one() as new:
        assert {again, kept} == {1, 2} and new == 3


def test_groups_and_meshes_without_a_timeout_have_that_of_the_default_group(run_scripts):
    (only,) = run_scripts("group_timeouts.py", size=1)
    assert only.returncode == 0, only.stderr
    limits = ast.literal_eval(only.stdout)
    assert limits[0] == 5 and limits[1:] == [77] * (len(limits) - 1) and len(limits) >= 3


def test_process_groups_that_are_destroyed_leave_no_threads_and_no_connections(run_scripts):
    for rank in run_scripts("made_again.py"):
        assert rank.returncode == 0, rank.stderr
        held = [tuple(map(int, line.split())) for line in rank.stdout.splitlines()]
        assert len(held) == 5 and {threads for threads, _ in held} == {0}
        descriptors = [count for _, count in held]
        assert descriptors[-1] <= descriptors[1] + 2, descriptors  # one may be about to close


def test_process_group_after_one_that_failed_works_and_a_lost_exit_code_is_explained(run_scripts):
    for rank in run_scripts("made_after_failure.py"):
        assert rank.stdout.split("\n")[:2] == ["CollectiveMismatchError", "[2.0, 2.0, 2.0]"]
        assert rank.returncode == 0 or "ended here, with code 1" in rank.stderr
