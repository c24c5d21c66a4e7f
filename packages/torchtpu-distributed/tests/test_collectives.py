# SPDX-License-Identifier: Apache-2.0
"""Collectives against what NumPy-like arithmetic on the CPU says of the same operands."""

from __future__ import annotations

import functools
import operator
import sys

import pytest
import torch

SIZE = 2
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
MOVED = [*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.float8_e4m3fn]


def operands(dtype: torch.dtype, *shape: int, count: int = SIZE) -> list[torch.Tensor]:
    """One tensor per rank: small integers, exact in every dtype here."""
    generator = torch.Generator().manual_seed(7)
    drawn = torch.randint(0, 5, (count, *shape), generator=generator)
    return list(drawn.to(dtype))


def same_bits(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal in shape, dtype and every bit."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    as_bytes = [t.contiguous().reshape(-1).view(torch.uint8) for t in (found, expected)]
    return torch.equal(*as_bytes)


@pytest.mark.parametrize("kind", ["broadcast", "reduce", "gather", "scatter"])
def test_root_that_is_not_in_the_group_is_refused_and_the_group_goes_on(pair, kind):
    for message, after in pair("roots.wrong", kind):
        assert "rank 2 is not in group '0', whose ranks are 0 to 1" in message
        assert after.tolist() == [2, 2]


@pytest.mark.parametrize(
    "kind",
    ["all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "reduce_scatter"],
)
def test_several_tensors_of_one_rank_are_refused_and_the_group_goes_on(pair, kind):
    for message, after in pair("several_tensors.refused", kind):
        assert "2 tensors of one rank in one call" in message
        assert after.tolist() == [2, 2]


@pytest.mark.parametrize("kind", ["list", "splits"])
def test_own_piece_of_another_size_is_refused_and_the_group_goes_on(pair, kind):
    found = pair("several_tensors.own_piece_of_another_size", kind)
    for rank, (message, after) in enumerate(found):
        assert f"group rank {rank} sends 4 bytes to itself and expects 12" in message
        assert after.tolist() == [2, 2]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.complex64], ids=str)
def test_all_reduce_sum_adds_operands_of_every_dtype(pair, dtype):
    each = operands(dtype, 3, 5)
    for found in pair("collectives.all_reduce", "SUM", each=each):
        assert same_bits(found, each[0] + each[1])


@pytest.mark.parametrize(
    ("op", "oracle"),
    [
        ("AVG", lambda a, b: (a + b) / 2),
        ("MAX", torch.maximum),
        ("MIN", torch.minimum),
        ("PRODUCT", torch.mul),
    ],
)
def test_all_reduce_reduces_as_the_operation_says(pair, op, oracle):
    each = operands(torch.float32, 4)
    for found in pair("collectives.all_reduce", op, each=each):
        assert same_bits(found, oracle(*each))


@pytest.mark.parametrize(
    ("op", "oracle"), [("BAND", operator.and_), ("BOR", operator.or_), ("BXOR", operator.xor)]
)
def test_all_reduce_of_integers_reduces_bitwise(pair, op, oracle):
    each = operands(torch.int32, 6)
    for found in pair("collectives.all_reduce", op, each=each):
        assert same_bits(found, oracle(*each))


@pytest.mark.parametrize(
    ("op", "dtype"),
    [("MIN", torch.complex64), ("BOR", torch.float32), ("SUM", torch.float8_e4m3fn)],
)
@pytest.mark.parametrize("kind", ["reduce_scatter", "reduce_scatter_list", "coalesced"])
def test_refused_reduction_leaves_the_group_usable(pair, kind, op, dtype):
    for message, after in pair("collectives.refused", kind, op, str(dtype)):
        assert f"Cannot use ReduceOp.{op} with" in message and str(dtype) in message
        assert after.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("kind", ["all_gather", "gather", "scatter", "reduce_scatter"])
def test_list_that_does_not_fit_is_refused_and_the_group_stays_usable(pair, kind):
    for message, after in pair("collectives.misfit", kind):
        assert message.startswith("entry 0 of the list has shape [7], but this rank's own")
        assert after.tolist() == [2.0, 2.0]


def test_all_reduce_sum_of_truth_values_is_true_where_one_is(pair):
    each = [torch.tensor([True, True, False]), torch.tensor([True, False, False])]
    for found in pair("collectives.all_reduce", "SUM", each=each):
        assert found.tolist() == [True, True, False]


def test_all_reduce_of_a_scalar_keeps_its_shape(pair):
    for found in pair("collectives.all_reduce", "SUM", each=[torch.tensor(2.0), torch.tensor(3.0)]):
        assert same_bits(found, torch.tensor(5.0))


def test_all_reduce_of_an_empty_tensor_does_nothing(pair):
    for found in pair("collectives.all_reduce", "SUM", each=[torch.empty(0, 3)] * SIZE):
        assert found.shape == (0, 3)


def test_all_reduce_of_a_view_changes_only_the_view(pair):
    each = operands(torch.float32, 2, 5)
    for found, own in zip(pair("collectives.all_reduce_view", each=each), each, strict=True):
        expected = own.clone()
        expected[:, 1:-1] = each[0][:, 1:-1] + each[1][:, 1:-1]
        assert same_bits(found, expected)


def test_all_reduce_premultiplied_scales_each_operand(pair):
    each = operands(torch.float32, 4)
    for found in pair("collectives.all_reduce_premultiplied", 0.5, each=each):
        assert same_bits(found, 0.5 * each[0] + 0.5 * each[1])


def test_all_reduce_async_gives_work_and_future_of_the_result(pair):
    each = operands(torch.float32, 4)
    for waited, future, value, completed, success in pair(
        "collectives.all_reduce_later", each=each
    ):
        assert waited and completed and success
        assert same_bits(future, each[0] + each[1]) and same_bits(value, each[0] + each[1])


def test_coalesced_all_reduce_sums_every_tensor(pair):
    first, second = operands(torch.float32, 3), operands(torch.float32, 2, 2)
    each = [[first[0], second[0]], [first[1], second[1]]]
    for found in pair("collectives.all_reduce_coalesced", each=each):
        assert same_bits(found[0], first[0] + first[1])
        assert same_bits(found[1], second[0] + second[1])


@pytest.mark.parametrize("destination", [0, 1])
def test_reduce_changes_only_the_destination(pair, destination):
    each = operands(torch.float32, 4)
    found = pair("collectives.reduce", destination, each=each)
    assert same_bits(found[destination], each[0] + each[1])
    assert same_bits(found[1 - destination], each[1 - destination])


@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_broadcast_moves_every_dtype(pair, dtype):
    each = [t.to(dtype) for t in operands(torch.float32, 5)]
    for found in pair("collectives.broadcast", 1, each=each):
        assert same_bits(found, each[1])


def test_broadcast_keeps_nan_payload_and_signed_zero(pair):
    bits = torch.tensor([0x7FC01234, -0x80000000, 0x7F800000], dtype=torch.int32)
    each = [bits.view(torch.float32), torch.ones(3)]
    for found in pair("collectives.broadcast", 0, each=each):
        assert torch.equal(found.view(torch.int32), bits)


@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_all_gather_moves_every_dtype(pair, dtype):
    each = [t.to(dtype) for t in operands(torch.float32, 2, 3)]
    for found in pair("collectives.all_gather", each=each):
        assert same_bits(found[0], each[0]) and same_bits(found[1], each[1])


def test_all_gather_single_concatenates(pair):
    each = operands(torch.float32, 2, 3)
    for found in pair("collectives.all_gather_single", each=each):
        assert same_bits(found, torch.cat(each))


def test_gather_gives_all_to_the_destination_only(pair):
    each = operands(torch.float32, 3)
    found = pair("collectives.gather", 1, each=each)
    assert found[0] == []
    assert same_bits(found[1][0], each[0]) and same_bits(found[1][1], each[1])


def test_scatter_gives_each_rank_its_piece(pair):
    pieces = operands(torch.int64, 3)
    found = pair("collectives.scatter", 0, each=[pieces, [torch.zeros_like(t) for t in pieces]])
    assert same_bits(found[0], pieces[0]) and same_bits(found[1], pieces[1])


@pytest.mark.parametrize("op", ["SUM", "AVG", "MAX"])
def test_reduce_scatter_keeps_the_own_piece(pair, op):
    oracle = {"SUM": torch.add, "AVG": lambda a, b: (a + b) / 2, "MAX": torch.maximum}[op]
    each = operands(torch.float32, 4, 2)
    reduced = oracle(*each)
    found = pair("collectives.reduce_scatter_single", op, each=each)
    assert same_bits(found[0], reduced[:2]) and same_bits(found[1], reduced[2:])
    found = pair("collectives.reduce_scatter", op, each=[list(t.split(2)) for t in each])
    assert same_bits(found[0], reduced[:2]) and same_bits(found[1], reduced[2:])


def test_all_to_all_transposes_pieces_over_ranks(pair):
    each = operands(torch.float32, 4, 3)
    expected = [torch.cat([each[0][:2], each[1][:2]]), torch.cat([each[0][2:], each[1][2:]])]
    for found, wanted in zip(
        pair("collectives.all_to_all_single", each=each), expected, strict=True
    ):
        assert same_bits(found, wanted)
    lists = pair("collectives.all_to_all", each=[list(t.split(2)) for t in each])
    for found, wanted in zip(lists, expected, strict=True):
        assert same_bits(torch.cat(found), wanted)


def test_all_to_all_with_uneven_splits_moves_every_row(pair):
    each = operands(torch.float32, 4, 2)
    splits = [[1, 3], [4, 0]]
    output_splits = [[1, 4], [3, 0]]
    found = pair(
        "collectives.all_to_all_uneven", output_splits, each=list(zip(each, splits, strict=True))
    )
    assert same_bits(found[0], torch.cat([each[0][:1], each[1]]))
    assert same_bits(found[1], each[0][1:])


def test_all_to_all_with_splits_of_the_input_alone_receives_equal_pieces(pair):
    each = operands(torch.float32, 5, 2)
    mine = [(x, [2, 3]) for x in each]
    found = pair("collectives.all_to_all_with_splits_of_one_side", each=mine)
    assert same_bits(found[0], torch.cat([x[:2] for x in each]))
    assert same_bits(found[1], torch.cat([x[2:] for x in each]))


def test_all_to_all_to_one_rank_leaves_the_other_without_rows(pair):
    each = operands(torch.float32, 4, 2)
    output_splits = [[0, 0], [4, 4]]
    found = pair("collectives.all_to_all_uneven", output_splits, each=[(x, [0, 4]) for x in each])
    assert found[0].shape == (0, 2)
    assert same_bits(found[1], torch.cat(each))


def test_batched_send_and_receive_do_not_wait_for_each_other(pair):
    each = operands(torch.bfloat16, 3)
    found = pair("collectives.exchange_with_neighbour", each=each)
    assert same_bits(found[0], each[1]) and same_bits(found[1], each[0])


def test_receive_takes_the_message_of_its_tag(pair):
    assert pair("collectives.send_then_receive_by_tag") == [[], [2.0, 2.0, 1.0, 1.0]]


def test_object_collectives_move_any_object(pair):
    each = [{"rank": 0}, ["a longer object", 1]]
    assert pair("collectives.objects", each=each) == [(each, each[0])] * SIZE


def test_cpu_tensors_are_reduced_too(pair):
    each = operands(torch.float32, 3)
    for found in pair("collectives.cpu_tensor", each=each):
        assert same_bits(found, each[0] + each[1])


def test_barrier_returns_on_all_ranks(pair):
    assert pair("collectives.barrier") == [True, True]


def test_all_reduce_charges_simulated_time_that_grows_with_size(pair):
    small = pair("collectives.simulated_time_ps", 1 << 10)
    large = pair("collectives.simulated_time_ps", 1 << 20)
    assert small[0] == small[1] > 0
    # float32 over one 45 GB/s link of v5e in each direction: at least its transfer time.
    assert large[0] - small[0] > 4 * (1 << 20) / 200e9 * 1e12


@pytest.mark.parametrize(("elements", "width"), [(1 << 20, 128), (1 << 10, 2048)])
def test_simulated_time_shows_hidden_and_exposed_communication(pair, elements, width):
    for communication, compute, both in pair("collectives.overlapped_times_ms", elements, width):
        hidden = communication + compute - both
        assert hidden == pytest.approx(min(communication, compute), rel=0.01)


def test_second_device_of_a_rank_is_refused_with_the_fix(pair):
    for message in pair("collectives.wrong_device", each=operands(torch.float32, 2)):
        assert "torch.tpu.set_device(LOCAL_RANK)" in message


def test_device_used_before_the_group_still_takes_part(late_pair):
    each = operands(torch.bfloat16, 3, 2)
    for found in late_pair("collectives.all_reduce", "SUM", each=each):
        assert same_bits(found, each[0] + each[1])
    for found in late_pair("collectives.all_gather_single", each=each):
        assert same_bits(found, torch.cat(each))


def test_four_ranks_sum_as_one(four):
    each = operands(torch.float32, 3, count=4)
    for found in four("collectives.all_reduce", "SUM", each=each):
        assert same_bits(found, functools.reduce(torch.add, each))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are counted in /proc")
def test_all_groups_of_a_process_share_the_thread_that_waits_for_messages(pair):
    assert pair("collectives.threads_of_groups") == [(1, 1), (1, 1)]


def test_subgroups_reduce_apart(four):
    each = operands(torch.float32, 3, count=4)
    found = four("collectives.halves", each=each)
    for rank in range(4):
        first = 2 * (rank // 2)
        assert same_bits(found[rank], each[first] + each[first + 1])


def test_groups_that_only_their_ranks_make_reduce_whatever_else_a_rank_is_in(pair):
    each = operands(torch.float32, 3)
    for found in pair("collectives.groups_others_do_not_know", each=each):
        assert all(same_bits(x, each[0] + each[1]) for x in found)


def test_device_mesh_of_a_group_that_is_bound_to_a_device_reduces(pair):
    each = operands(torch.float32, 3)
    for found in pair("collectives.mesh_of_a_bound_group", each=each):
        assert same_bits(found, each[0] + each[1])


def test_device_mesh_reduces_along_each_axis(four):
    each = operands(torch.float32, 3, count=4)
    for rank, (by_row, by_column) in enumerate(four("collectives.rows_and_columns", each=each)):
        assert same_bits(by_row, each[rank - rank % 2] + each[rank - rank % 2 + 1])
        assert same_bits(by_column, each[rank % 2] + each[rank % 2 + 2])
