# SPDX-License-Identifier: Apache-2.0
"""Asynchronous collectives: who begins them, results, order, records, and memory in use."""

from __future__ import annotations

import pytest
import torch


def drawn(*shape: int) -> list[torch.Tensor]:
    """A tensor of small integers per rank."""
    generator = torch.Generator().manual_seed(3)
    return list(torch.randint(0, 9, (2, *shape), generator=generator).float())


@pytest.mark.parametrize("job", ["run_by_who_waits", "begun_by_who_waits"])
def test_collective_is_run_by_the_thread_that_waits_for_it_at_once(pair, job):
    each = drawn(5)
    for total, others in pair(f"asynchronous.{job}", each=each):
        assert torch.equal(total, 2**9 * (each[0] + each[1]))
        assert others <= 1  # the one whose future was asked for


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16])
def test_collective_that_nobody_waits_for_is_run(pair, dtype):
    each = drawn(5)
    for results in pair("asynchronous.run_though_nobody_waits", dtype, each=each):
        for i, result in enumerate(results, 1):
            assert torch.equal(result, i * (each[0] + each[1]))


def test_every_kind_is_run_by_compiled_code_and_recorded_with_the_users_line(pair):
    each = drawn(4, 3)
    first, second = each
    halves = [torch.cat([first[:2], second[:2]]), torch.cat([first[2:], second[2:]])]
    for rank, (results, long_ways, entries) in enumerate(
        pair("asynchronous.every_kind", each=each)
    ):
        mine = (first + second)[2 * rank : 2 * rank + 2]
        wanted = [(first + second) / 2, second, torch.cat(each), mine, halves[rank]]
        assert all(torch.equal(a, b) for a, b in zip(results, wanted, strict=True))
        assert long_ways == 0
        assert [e["profiling_name"] for e in entries] == [
            *("xccl:all_reduce", "xccl:broadcast", "xccl:_all_gather_base"),
            *("xccl:_reduce_scatter_base", "xccl:all_to_all", "xccl:barrier"),
        ]
        assert {e["frames"][0]["name"] for e in entries} == {"every_kind"}
        assert {e["state"] for e in entries} == {"completed"}
        numbers = [e["collective_seq_id"] for e in entries]
        assert numbers == list(range(numbers[0], numbers[0] + 6))


def test_both_ways_and_synchronous_ones_keep_one_order(pair):
    each = drawn(5)
    for results in pair("asynchronous.ways_in_turn", each=each):
        for i, result in enumerate(results, 1):
            assert torch.equal(result, i * (each[0] + each[1]))


@pytest.mark.parametrize(
    "last", ["waited for", "future", "synchronous", "python's", "python's synchronous"]
)
def test_who_has_waited_for_one_has_waited_for_those_before_it(pair, last):
    for over, results in pair("asynchronous.over_before_the_last", last):
        assert over == [True] * 3
        assert results == [2.0 * (1 << 22), 2.0 * (1 << 18), 2.0 * (1 << 14)]


def test_tensor_in_use_is_waited_for_by_what_uses_it_next(pair):
    each = drawn(4, 3)
    total = each[0] + each[1]
    for early, gathered, x in pair("asynchronous.same_tensor_many_times", each=each):
        assert torch.equal(early, 8 * total) and torch.equal(x, 16 * total)
        assert torch.equal(gathered, torch.cat([8 * total] * 2))


def test_parts_of_one_tensor_are_reduced_at_once(pair):
    each = drawn(5)
    total = each[0] + each[1]
    for whole, long_ways in pair("asynchronous.parts_at_once", each=each):
        assert torch.equal(whole, torch.cat([total, 2 * total])) and long_ways == 0


def test_part_of_a_tensor_that_changes_while_another_is_reduced_keeps_both(pair):
    each = drawn(5)
    results = pair("asynchronous.parts_of_which_one_changes", each=each)
    for rank, whole in enumerate(results):
        assert torch.equal(whole, torch.cat([each[0] + each[1], 3 * each[rank]]))


def test_callbacks_of_futures_may_wait_for_other_collectives(pair):
    each = drawn(5)
    for results in pair("asynchronous.callbacks_that_wait", each=each):
        for i, result in enumerate(results):
            assert torch.equal(result, 2 * i * (each[0] + each[1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16])  # compiled code's, and Python's
def test_callback_comes_where_it_is_written_so_that_ranks_keep_one_order(pair, dtype):
    each = [torch.tensor([1, 2]), torch.tensor([4, 8])]
    for order, (first, second) in pair("asynchronous.callbacks_in_their_turn", dtype, each=each):
        assert order == ["callback", "caller"]
        assert first.tolist() == [5, 10] and second.tolist() == [50, 100]


def test_functional_collectives_are_run_by_compiled_code(pair):
    each = drawn(4, 3)
    total = each[0] + each[1]
    for rank, (results, long_ways) in enumerate(pair("asynchronous.functional", each=each)):
        wanted = [total, torch.cat(each), total[2 * rank : 2 * rank + 2] / 2]
        assert all(torch.equal(a, b) for a, b in zip(results, wanted, strict=True))
        assert long_ways == 0


@pytest.mark.parametrize("way", ["float32", "int16", "message"])
def test_wait_with_a_timeout_ends_and_can_be_repeated(pair, way):
    first, second = drawn(5)
    (said, result), (_, other) = pair("asynchronous.waited_for_in_turns", way, each=[first, second])
    assert "100 ms" in said or "0.1 s" in said
    total = first + second
    assert torch.equal(result.float(), second if way == "message" else total)
    assert torch.equal(other.float(), second if way == "message" else total)


def test_collectives_in_a_compiled_graph_are_recorded_with_their_own_lines(pair):
    each = [torch.ones(2), torch.ones(2)]
    for found, lines in pair("asynchronous.recorded_in_a_graph", each=each):
        assert found.tolist() == [5, 5, 5, 5] and lines == [1, 2]


def test_works_hold_the_tensors_that_were_given_for_results(pair):
    for rank, ((gathered, into), (exchanged, received)) in enumerate(
        pair("asynchronous.results_of_works")
    ):
        x = torch.arange(2.0)
        assert len(gathered) == len(into) == (0 if rank else 2)
        assert all(torch.equal(t, x) for t in [*gathered, *into])
        assert len(exchanged) == 2
        for sender, (t, wanted) in enumerate(zip(exchanged, received, strict=True)):
            assert torch.equal(t, wanted) and torch.equal(t, x + sender + rank)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("ranks", ["pair", "xla_pair"])
def test_future_of_a_gathered_list_holds_one_tensor_with_a_row_per_rank(request, ranks, later):
    for pairs in request.getfixturevalue(ranks)("asynchronous.future_of_a_gathered_list", later):
        for found, wanted in pairs:
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)
