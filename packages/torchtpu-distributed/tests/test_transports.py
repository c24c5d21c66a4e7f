# SPDX-License-Identifier: Apache-2.0
"""What carries collectives: gloo on the device's memory, and XLA's programs."""

from __future__ import annotations

import threading
import uuid

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


def test_mailbox_gives_readers_every_entry_and_never_overtakes_them(tmp_path):
    path, abort = str(tmp_path / "box"), _C.Abort()
    writer = _C.Mailbox(path, 0, 2)
    reader = _C.Mailbox(path, 1, 2)
    said = [f"call {i}" for i in range(1, 1001)]  # several times round the ring

    def write() -> None:
        for number, text in enumerate(said, 1):
            writer.post(number, text, abort)

    thread = threading.Thread(target=write)
    thread.start()
    assert [reader.read(number, abort) for number in range(1, 1001)] == said
    thread.join()


def test_wait_for_a_mailbox_ends_when_the_job_has_failed(tmp_path):
    path, abort = str(tmp_path / "box"), _C.Abort()
    _C.Mailbox(path, 0, 2)
    found: list[str | None] = []
    thread = threading.Thread(target=lambda: found.append(_C.Mailbox(path, 1, 2).read(1, abort)))
    thread.start()
    abort.set()
    thread.join()
    assert found == [None]


def call(what: str) -> _C.Call:
    """What ranks compare."""
    return _C.Call(what, "all_reduce", (), (), 0)


@pytest.mark.parametrize("nearby", [True, False])
def test_first_calls_tell_a_difference_by_memory_and_by_the_store(nearby):
    store = dist.HashStore()
    name = uuid.uuid4().hex

    def read(key: str) -> str:
        return dist.PrefixStore(name, store).get(key).decode()

    def made(rank: int) -> FirstCalls:
        return FirstCalls(
            dist.PrefixStore(name, store), rank, 2, nearby=nearby, abort=_C.Abort(), read=read,
            forget=lambda _key: None,
        )  # fmt: skip

    ranks: dict[int, FirstCalls] = {}
    other = threading.Thread(target=lambda: ranks.update({1: made(1)}))
    other.start()
    ranks[0] = made(0)
    other.join()
    long = "all_reduce of " + "float32[8], " * 200
    for number, what in enumerate(["barrier", long, long + "x"], 1):
        assert ranks[0].compare(number, call(what), "a.py:1 in f") is None
    assert ranks[1].compare(1, call("barrier"), "") is None
    assert ranks[1].compare(2, call(long), "") is None
    what, line = first_calls.read(ranks[1].compare(3, call(long + "y"), ""))
    assert line == "a.py:1 in f" and long.startswith(what) and len(what) > 500
