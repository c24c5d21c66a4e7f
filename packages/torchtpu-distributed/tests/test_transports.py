# SPDX-License-Identifier: Apache-2.0
"""What carries collectives: gloo on the device's memory, and XLA's programs."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torchtpu_distributed import _C, first_calls
from torchtpu_distributed.first_calls import FirstCalls


def drawn(*shape: int) -> list[torch.Tensor]:
    """A tensor of small integers per rank."""
    generator = torch.Generator().manual_seed(11)
    return list(torch.randint(0, 9, (2, *shape), generator=generator).float())


def expected_of_all_kinds(each: list[torch.Tensor], rank: int) -> list[torch.Tensor]:
    """What `collectives.all_kinds` gives on a rank of two."""
    first, second = each
    halves = [torch.cat([first[:2], second[:2]]), torch.cat([first[2:], second[2:]])]
    rooted = each if rank == 0 else []
    reduced = first + second
    piece = reduced[2 * rank : 2 * rank + 2]
    return [reduced, second, first, second, piece, halves[rank], *rooted, first + rank]


@pytest.mark.parametrize("fixture", ["pair", "xla_pair", "late_xla_pair"])
def test_every_kind_of_collective_moves_the_same_by_any_transport(request, fixture):
    each = drawn(4, 3)
    found = request.getfixturevalue(fixture)("collectives.all_kinds", each=each)
    for rank in range(2):
        wanted = expected_of_all_kinds(each, rank)
        assert len(found[rank]) == len(wanted)
        assert all(torch.equal(a, b) for a, b in zip(found[rank], wanted, strict=True))


# above 16 KiB core gives memory away instead of copying it
@pytest.mark.parametrize("rows", [2, 3000])
def test_reduction_leaves_what_was_made_of_the_tensor_before(pair, rows):
    each = drawn(rows, 3)
    for rank, (reduced, *others) in enumerate(pair("collectives.versions", each=each)):
        host, copy, doubled = others
        assert torch.equal(reduced, each[0] + each[1])
        assert torch.equal(host, each[rank]) and torch.equal(copy, each[rank])
        assert torch.equal(doubled, 2 * each[rank])


@pytest.mark.parametrize("rows", [2, 3000])
def test_tensor_reduced_twice_without_a_wait_is_reduced_in_order(pair, rows):
    each = drawn(rows, 3)
    for found in pair("collectives.reduced_twice_later", each=each):
        assert torch.equal(found, 2 * (each[0] + each[1]))


def test_burst_of_reductions_waited_for_backwards_needs_few_threads(pair):
    each = drawn(3)
    total = each[0] + each[1]
    for found, threads in pair("collectives.bursts_waited_for_backwards", each=each):
        wanted = [2 * 39 * total, *(i * total for i in range(40))]
        assert all(torch.equal(a, b) for a, b in zip(found, 3 * wanted, strict=True))
        assert threads < 10


@pytest.mark.parametrize("rows", [2, 3000])
def test_operand_dropped_while_it_is_gathered_keeps_its_memory(pair, rows):
    each = drawn(rows, 3)
    found = pair("collectives.operand_given_up_later", each=each)
    for rank, (gathered, used) in enumerate(found):
        assert torch.equal(gathered, torch.cat(each)) and torch.equal(used, each[rank] + 1)


def test_callback_of_a_future_gets_the_results(pair):
    each = drawn(5)
    for found in pair("collectives.chained_future", each=each):
        assert torch.equal(found, 3 * (each[0] + each[1]))


def both_first_calls(nearby: bool) -> dict[int, FirstCalls]:
    """Those of two ranks."""
    store = dist.PrefixStore(uuid.uuid4().hex, dist.HashStore())

    def made(rank: int) -> FirstCalls:
        return FirstCalls(
            store, rank, 2, nearby=nearby, abort=_C.Abort(),
            read=lambda key: store.get(key).decode(), forget=lambda _key: None,
        )  # fmt: skip

    ranks: dict[int, FirstCalls] = {}
    other = threading.Thread(target=lambda: ranks.update({1: made(1)}))
    other.start()
    ranks[0] = made(0)
    other.join()
    return ranks


def test_memory_that_no_other_rank_comes_to_is_in_no_folder_and_given_back():
    before, names_before = open_memory(), names_in_memory()

    def lost(_key: str) -> str:
        assert len(open_memory()) == len(before) + 1
        assert names_in_memory() <= names_before  # what a rank that is killed here would leave
        raise RuntimeError("a rank is lost")

    with pytest.raises(RuntimeError, match="a rank is lost"):
        FirstCalls(
            dist.HashStore(), 0, 2, nearby=True, abort=_C.Abort(), read=lost,
            forget=lambda _key: None,
        )  # fmt: skip
    assert open_memory() == before


def names_in_memory() -> set[str]:
    """Files of ours that have a name in the folder of shared memory."""
    return {path.name for path in Path("/dev/shm").glob("*torchtpu*")}


def open_memory() -> list[Path]:
    """Memory for ranks to share that this process has open."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [link for link in links if "torchtpu_calls" in str(link.readlink())]


def test_rank_without_patience_says_nothing_while_the_ring_is_full(tmp_path):
    path, abort = str(tmp_path / "box"), _C.Abort()
    ahead, behind = (_C.Mailbox(path, rank, 2, 4) for rank in range(2))
    for number in range(1, 5):
        assert ahead.compare(number, call("barrier"), "", abort) is None
    assert ahead.compare(5, call("reduce"), "", abort, False) is None  # the ring is full
    assert ahead.said(0, 5) is None and ahead.said(0, 4) is not None
    assert behind.compare(4, call("other"), "", abort) is not None
    behind.take_back(4)
    assert ahead.said(1, 4) is None


def call(what: str) -> _C.Call:
    """What ranks compare."""
    return _C.Call(what, "all_reduce", (), (), 0)


def test_of_two_ranks_at_least_one_sees_each_difference_in_the_mailbox(tmp_path):
    path, abort, numbers = str(tmp_path / "box"), _C.Abort(), range(1, 1001)  # some times round
    boxes = [_C.Mailbox(path, rank, 2) for rank in range(2)]
    seen: list[list[str | None]] = [[], []]

    def say(rank: int) -> None:
        for number in numbers:
            what = f"{rank if number % 3 == 0 else 'same'} {number}"
            seen[rank].append(boxes[rank].compare(number, call(what), "line", abort))

    thread = threading.Thread(target=say, args=[1])
    thread.start()
    say(0)
    thread.join()
    for number, of_first, of_second in zip(numbers, *seen, strict=True):
        said = [first_calls.read(each) for each in (of_first, of_second) if each is not None]
        assert bool(said) == (number % 3 == 0)
        assert all((d.what, d.line) == (f"{d.rank} {number}", "line") for d in said)


def test_place_where_ranks_part_is_found_while_the_ring_holds_it():
    ranks = both_first_calls(True)
    for number in range(1, 300):
        for rank in range(2):
            line = "b.py:2" if rank == 1 and number >= 100 else "a.py:1"
            assert ranks[rank].compare(number, call("barrier"), line) is None
        found = ranks[0].parting(number)
        last = 99 + _C.Mailbox.ENTRIES  # then no call is left that both made at one line
        if 100 <= number < last:
            assert found == (100, {0: "barrier at a.py:1", 1: "barrier at b.py:2"})
        else:
            assert found is None
    assert ranks[0].parting(50) is None
    assert ranks[0].compare(300, call("barrier"), "a.py:1") is None  # the other has not come to it
    assert ranks[0].last(1, about=300) == (299, "barrier at b.py:2")
    assert ranks[1].last(0, about=299) == (300, "barrier at a.py:1")
    assert ranks[0].last(1, about=900) == (0, "")


def test_rank_that_is_a_whole_ring_ahead_waits_until_the_job_has_failed(tmp_path):
    path, abort = str(tmp_path / "box"), _C.Abort()
    ahead, _behind = (_C.Mailbox(path, rank, 2) for rank in range(2))
    said: list[str | None] = []

    def say() -> None:
        for number in range(1, 2000):
            said.append(ahead.compare(number, call("barrier"), "", abort))

    thread = threading.Thread(target=say)
    thread.start()
    abort.set()
    thread.join()  # each wait has ended
    assert set(said) == {None}


@pytest.mark.parametrize("nearby", [True, False])
def test_first_calls_tell_a_difference_by_memory_and_by_the_store(nearby):
    ranks = both_first_calls(nearby)
    long = "all_reduce of " + "float32[8], " * 200
    for number, what in enumerate(["barrier", long, long + "x"], 1):
        assert ranks[0].compare(number, call(what), "a.py:1 in f") is None
    assert ranks[1].compare(1, call("barrier"), "") is None
    assert ranks[1].compare(2, call(long), "") is None
    found = ranks[1].compare(3, call(long + "y"), "")
    assert found.rank == 0 and found.line == "a.py:1 in f"
    assert long.startswith(found.what) and len(found.what) > 500


@pytest.mark.parametrize("nearby", [True, False])
def test_rank_that_comes_first_waits_for_no_other(nearby):
    ranks = both_first_calls(nearby)
    assert ranks[1].compare(1, call("barrier"), "b.py:1 in g") is None
    found = ranks[0].compare(1, call("all_reduce"), "a.py:1 in f")
    assert found.rank == 1 and found.line == "b.py:1 in g"
