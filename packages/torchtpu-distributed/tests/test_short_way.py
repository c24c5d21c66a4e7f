# SPDX-License-Identifier: Apache-2.0
"""Synchronous collectives in compiled code: results, records, and memory that others still read."""

from __future__ import annotations

import functools

import pytest
import torch


def drawn(*shape: int) -> list[torch.Tensor]:
    """A tensor of small integers per rank."""
    generator = torch.Generator().manual_seed(12)
    return list(torch.randint(0, 9, (2, *shape), generator=generator).float())


def test_every_kind_takes_the_short_way_and_is_recorded_with_the_users_line(pair):
    each = drawn(4, 3)
    first, second = each
    halves = [torch.cat([first[:2], second[:2]]), torch.cat([first[2:], second[2:]])]
    for rank, (results, long_ways, entries) in enumerate(pair("short_way.every_kind", each=each)):
        wanted = [
            torch.maximum(first, second),
            (first + second) / 2,
            second,
            torch.cat(each),
            (first + second)[2 * rank : 2 * rank + 2],
            halves[rank],
            first + second if rank == 0 else second,  # the others keep theirs
            (first + second) / 2 if rank == 1 else first,
        ]
        assert all(torch.equal(a, b) for a, b in zip(results, wanted, strict=True))
        assert long_ways == 0
        assert [e["profiling_name"] for e in entries] == [
            *("xccl:all_reduce", "xccl:all_reduce", "xccl:broadcast", "xccl:_all_gather_base"),
            *("xccl:_reduce_scatter_base", "xccl:all_to_all", "xccl:reduce", "xccl:reduce"),
            "xccl:barrier",
        ]
        assert {e["frames"][0]["name"] for e in entries} == {"every_kind"}
        assert {e["state"] for e in entries} == {"completed"}
        numbers = [e["collective_seq_id"] for e in entries]
        assert numbers == list(range(numbers[0], numbers[0] + 9))


@pytest.mark.parametrize("later", [False, True])
def test_every_kind_of_list_takes_the_short_way(pair, later):
    each = drawn(4, 3)
    found = pair("short_way.every_list", later, each=each)
    for rank, (results, long_ways, (entries, futures)) in enumerate(found):
        own = each[0] + each[1] + 2 * rank
        swapped = [x + rank for x in each]
        wanted = [each, each, each if rank == 1 else [], [each[1] + rank], [own], swapped]
        torch.testing.assert_close(results, wanted, rtol=0, atol=0)
        assert long_ways == 0
        if later:  # as gloo's: what an all-gather gives is one tensor there
            joined = [torch.stack(each)]
            torch.testing.assert_close(futures, [joined, joined, *wanted[2:]], rtol=0, atol=0)
        assert [e["profiling_name"] for e in entries] == [
            *("xccl:all_gather", "xccl:all_gather", "xccl:gather"),
            *("xccl:scatter", "xccl:reduce_scatter", "xccl:all_to_all"),
        ]
        assert {e["frames"][0]["name"] for e in entries} == {"every_list"}


def test_gather_in_one_rank_only_by_the_short_way_agrees_with_the_other(pair):
    each = drawn(4, 3)
    for rank, (at_root, scattered, long_ways) in enumerate(
        pair("short_way.lists_by_different_ways", each=each)
    ):
        assert long_ways == (2 if rank == 0 else 0)
        wanted = [x[:, :2] for x in each] if rank == 0 else []
        torch.testing.assert_close(at_root, wanted, rtol=0, atol=0)
        assert torch.equal(scattered, each[0][:, :2] + rank)


def test_pieces_of_different_sizes_arrive_whichever_way(pair):
    each = drawn(4, 3)
    found = pair("short_way.pieces_by_different_ways", each=each)
    assert [long_ways for *_, long_ways in found] == [2, 0]
    for rank, (received, later, _) in enumerate(found):
        wanted = torch.cat([x[:3] if rank == 0 else x[3:] for x in each])
        assert torch.equal(received, wanted) and torch.equal(later, wanted)


def test_reduction_in_place_waits_for_programs_that_read_the_tensor(pair):
    generator = torch.Generator().manual_seed(4)
    each = list(torch.randn(2, 500, 500, generator=generator))
    for rank, (product, reduced) in enumerate(
        pair("short_way.reduced_beside_a_program", each=each)
    ):
        wanted = each[rank]
        for _ in range(20):
            wanted = wanted @ each[rank] / 64
        torch.testing.assert_close(product, wanted, rtol=1e-3, atol=1e-3)
        assert torch.equal(reduced, each[0] + each[1])


def test_reduction_leaves_memory_that_code_outside_reads(pair):
    each = drawn(4, 3)
    for rank, (outside, reduced) in enumerate(pair("short_way.reduced_while_lent", each=each)):
        assert torch.equal(outside, each[rank]) and torch.equal(reduced, each[0] + each[1])


@pytest.mark.parametrize(
    ("dtype", "op", "python"),
    [
        (torch.float32, "SUM", 0),
        (torch.int16, "SUM", 0),
        (torch.bool, "SUM", 0),  # true if one is
        (torch.int16, "BXOR", 1),
    ],
)
def test_rows_of_a_matrix_are_reduced_and_the_others_stay(pair, dtype, op, python):
    each = drawn(5, 3)
    first, second = (x[1:-1].to(dtype) for x in each)
    reduced = first + second if op == "SUM" else first ^ second
    for rank, (found, long_ways) in enumerate(pair("short_way.rows_reduced", dtype, op, each=each)):
        wanted = each[rank].to(dtype).float()
        wanted[1:-1] = reduced.float()
        assert torch.equal(found, wanted) and long_ways == python


@pytest.mark.parametrize("root", [0, 1])
@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        (torch.float32, "MAX"),  # gloo alone would lose the NaN of one of the ranks
        (torch.bfloat16, "AVG"),
        (torch.bool, "SUM"),
        (torch.int16, "PRODUCT"),
    ],
)
def test_root_of_two_ranks_reduces_what_the_other_brings_whichever_way(pair, dtype, op, root):
    each = drawn(4, 3)
    if dtype == torch.float32:
        each[0][0, 0] = each[1][1, 1] = float("nan")
    found = pair("short_way.reduced_on_a_root", dtype, op, root, each=each)
    assert [long_ways for *_, long_ways in found] == [0, 1]
    (first, *_), (second, *_) = found
    of_both = {
        "MAX": torch.maximum(first, second),
        "AVG": (first + second) / 2 if dtype.is_floating_point else first,
        "SUM": first + second,
        "PRODUCT": first * second,
    }[op]
    for rank, (before, after, _) in enumerate(found):
        wanted = of_both if rank == root else before
        torch.testing.assert_close(after, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("repeat", [4, 10000])  # gloo gathers small pieces in another way
def test_gather_in_place_after_a_lookup_takes_the_short_way(pair, repeat):
    each = drawn(4, 3)
    rows = torch.arange(repeat).flip(0) % 4
    for found, long_ways in pair("short_way.gathered_as_in_training", repeat, each=each):
        assert torch.equal(found, torch.cat([x[rows] for x in each])) and long_ways == 0


def test_ranks_may_go_different_ways(pair):
    each = drawn(4, 3)
    found = pair("short_way.reduced_by_different_ways", each=each)
    assert [long_ways for _, long_ways in found] == [1, 0]
    assert all(torch.equal(x, (each[0] + each[1])[:, :2]) for x, _ in found)


@pytest.mark.parametrize("length", [3, 1000, 200_000])  # gloo's ring, an exchange, the ring
def test_small_reductions_are_the_same_on_every_rank_whichever_way(four, length):
    each = list(torch.randn(4, length, generator=torch.Generator().manual_seed(2)))
    each[0][0] = each[3][1] = float("nan")  # which gloo's ring loses, or not, by the rank
    total, product = each[0], each[0]
    for x in each[1:]:
        total, product = total + x, product * x
    stacked = torch.stack(each)
    wanted = [total, total / 4, product, stacked.amin(0), stacked.amax(0)]
    found = four("short_way.reduced_in_every_way", each=each)
    long = 2 if length > 1000 else 0  # the least and the greatest of many, folded by Python
    assert [long_ways for _, long_ways in found] == [long, 5, long, 5]
    same = functools.partial(torch.testing.assert_close, rtol=0, atol=0, equal_nan=True)
    for results, _ in found:
        same(results, found[0][0])
        torch.testing.assert_close(results, wanted, equal_nan=True)
        same(results[3:], wanted[3:])
        if length == 1000:  # in the order of the ranks
            same(results, wanted)


@pytest.mark.parametrize("fixture", ["pair", "xla_pair"])
def test_messages_arrive_whichever_way_they_are_asked_for(request, fixture):
    each = drawn(4, 3)
    found = request.getfixturevalue(fixture)("short_way.messages", each=each)
    for rank, (in_turn, at_once, from_any, batched) in enumerate(found):
        theirs = each[1 - rank]
        assert torch.equal(in_turn, theirs) and torch.equal(at_once, theirs)
        assert torch.equal(from_any, 2 * each[rank])
        assert torch.equal(batched[1], 2 * each[rank]) and not batched[0].any()
