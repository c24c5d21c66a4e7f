# SPDX-License-Identifier: Apache-2.0
"""Which values of a step take HBM: recordings made by hand, and the rules of XLA's compiler."""

from __future__ import annotations

import pytest
from torchtpu_core.plan.lifetimes import lifetimes_of
from torchtpu_core.plan.memory import memory_of
from torchtpu_core.plan.paddings import image_padding
from torchtpu_core.plan.records import Block, Category, Phase, Work
from torchtpu_core.plan.tiles import padded_sizes
from torchtpu_core.plan.vmem import Vmem
from torchtpu_core.testing.recordings import MIB, op, recording

SQUARE = ((1, 4096, 4096, 4096),)
BACK = Phase.BACKWARD


def _memory(ops, died, *, shapes=None, vmem_bytes=0, vmem=None):
    made = recording(ops, died)
    for number, shape in (shapes or {}).items():
        made.blocks[number].shape = shape
    return memory_of(made.ops, made.blocks, (0, len(ops)), 1 << 40, vmem or Vmem(vmem_bytes))


def _of_pixels(ops, died, shapes, tokens) -> None:
    """Adds tokens of a shape that are made of an image, so that these are not kept as rows."""
    ops += [op("convolution", Work.MATMUL, (1,), (90,)), op("clone", Work.MOVE, (90,), (91,))]
    died.update({90: len(ops), 91: len(ops)})
    shapes.update({90: (tokens[0], tokens[2], tokens[1]), 91: tokens})


def _passing(memory) -> list[int]:
    """Bytes of values that live for a part of the step, before each operator."""
    kept = (Category.ACTIVATIONS, Category.TEMPORARIES)
    return [sum(memory.curves[c][i] for c in kept) for i in range(len(memory.curves[kept[0]]))]


@pytest.mark.parametrize("read", [True, False])
def test_attention_holds_statistics_that_somebody_reads_in_whole_vectors(read) -> None:
    more = {"scores": 1e9, "head_dims": (128, 128), "flash": True}
    ops = [
        op("sdpa", Work.ATTENTION, (1,), (2, 9), **more),
        op("mm", Work.MATMUL, (2, 9) if read else (2,), (3,), products=SQUARE),
    ]
    first, then = _passing(_memory(ops, {2: 2, 9: 2}))[:2]
    # A row of 128 two-byte elements has two statistics, each a float32 in 128 lanes.
    assert first - then == (MIB // 256 * 2 * 128 * 4 if read else 0)


@pytest.mark.parametrize("width", [128, 64])
def test_attention_keeps_narrow_heads_for_its_gradient_in_whole_vectors(width) -> None:
    more = {"scores": 1e9, "head_dims": (width, width), "flash": True}
    ops = [
        op("mm", Work.MATMUL, (1,), (2,), products=SQUARE),
        op("sdpa", Work.ATTENTION, (2,), (3,), **more),
        op("sum", Work.MOVE, (3,), (4,)),
        op("sdpa_backward", Work.ATTENTION, (2, 3, 4), (5,), BACK, gradient=True, **more),
    ]
    memory = _memory(ops, {2: 4, 3: 4, 4: 4})
    others = 2 * MIB  # 4, and 5, which is there throughout
    total = sum(memory.curves[c][2] for c in Category) - memory.holes_bytes
    assert total == others + MIB + 2 * MIB * (128 // width)


def test_result_that_nobody_reads_takes_no_memory() -> None:
    read = op("mm", Work.MATMUL, (2,), (3,), products=SQUARE)
    other = op("mm", Work.MATMUL, (1,), (3,), products=SQUARE)
    sizes = []
    for user in (read, other):
        memory = _memory([op("tanh", Work.MOVE, (1,), (2,)), user], {2: 2})
        sizes.append(sum(memory.curves[c][0] for c in Category))
    assert sizes[0] - sizes[1] == MIB


def test_value_that_python_still_refers_to_ends_with_its_last_reader() -> None:
    ops = [
        op("mm", Work.MATMUL, (1,), (2,), products=SQUARE),
        op("mm", Work.MATMUL, (2,), (3,), products=SQUARE),
        op("mm", Work.MATMUL, (3,), (4,), products=SQUARE),
    ]
    long, short = (_memory(ops, {2: end, 3: 3}).curves for end in (3, 2))
    assert long == short


def _chain(*, readers: int, operands: int):
    """A product, elementwise work on it, and products that read that, the last one far off."""
    ops = [op("mm", Work.MATMUL, (1,), (10 + i,), products=SQUARE) for i in range(operands)]
    sources = tuple(range(10, 10 + operands))
    ops.append(op("relu", Work.ELEMENTWISE, sources, (20,)))
    ops += [op("mm", Work.MATMUL, (20,), (30 + i,), products=SQUARE) for i in range(readers)]
    middle = len(ops)
    ops += [op("mm", Work.MATMUL, (1,), (40,), products=SQUARE)]
    ops += [op("mm", Work.MATMUL, (*sources, 20), (50,), BACK, products=SQUARE)]
    return _memory(ops, {number: len(ops) for number in (*sources, 20)}), middle


def test_elementwise_result_of_one_operand_is_computed_again_for_its_readers() -> None:
    memory, middle = _chain(readers=1, operands=1)
    # Results that outlive the step, and the product: the ReLU of it is not kept.
    assert memory.curves[Category.ACTIVATIONS][middle] == (1 + 2) * MIB + MIB


@pytest.mark.parametrize("readers", [2, 4])
def test_sum_that_many_read_is_kept_beside_its_operands(readers) -> None:
    """With three readers it moves as many bytes to keep it as not to."""
    memory, middle = _chain(readers=readers, operands=2)
    assert memory.curves[Category.ACTIVATIONS][middle] == (readers + 2) * MIB + 3 * MIB


def test_value_that_fits_vmem_throughout_takes_no_hbm() -> None:
    ops = [
        op("mm", Work.MATMUL, (1,), (2,), products=SQUARE),
        op("mm", Work.MATMUL, (2,), (3,), products=SQUARE),
    ]
    for room, expected in ((0, MIB), (2 * MIB, 0)):
        memory = _memory(ops, {2: 2}, vmem_bytes=room)
        assert _passing(memory)[0] - MIB == expected


@pytest.mark.parametrize(("steps", "written"), [(8, False), (256, True)])
def test_result_of_which_every_step_of_a_long_scan_reads_a_part_is_written(steps, written) -> None:
    ops = [
        op("mm", Work.MATMUL, (1,), (2,), products=SQUARE),
        op("sum", Work.MOVE, (2,), (4,)),
        op("exp", Work.ELEMENTWISE, (2,), (3,)),
    ]
    for step in range(steps):
        scan = op("bmm", Work.MATMUL, (3, 4), (5 + step,), products=SQUARE)
        scan.read_bytes = (MIB // steps, MIB)
        ops.append(scan)
    made = recording(ops, {2: len(ops), 3: len(ops), 4: len(ops)})
    lives = lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives
    assert any(life.storage == 3 for life in lives) == written


@pytest.mark.parametrize(("statistic", "kept"), [(MIB // 64, 2), (MIB, 1)])
def test_norm_that_is_written_out_is_kept_for_its_products(statistic, kept) -> None:
    ops = [
        op("mm", Work.MATMUL, (1,), (2,), products=SQUARE),
        op("mean", Work.ELEMENTWISE, (2,), (3,), write_bytes=(statistic,)),
        op("mul", Work.ELEMENTWISE, (2, 3), (4,)),
        op("mm", Work.MATMUL, (4,), (5,), products=SQUARE),
        op("mm", Work.MATMUL, (1,), (6,), products=SQUARE),
        op("mm", Work.MATMUL, (4, 2), (7,), BACK, products=SQUARE),
    ]
    memory = _memory(ops, dict.fromkeys((2, 3, 4), 6))
    assert _passing(memory)[4] - 3 * MIB == kept * MIB


@pytest.mark.parametrize(("statistic", "kept"), [((4, 1, 1, 64), 1), ((4, 32, 32, 1), 2)])
def test_norm_over_positions_is_applied_within_its_products(statistic, kept) -> None:
    ops = [
        op("mm", Work.MATMUL, (1,), (2,), products=SQUARE),
        op("linalg_vector_norm", Work.ELEMENTWISE, (2,), (3,), write_bytes=(MIB // 64,)),
        op("mul", Work.ELEMENTWISE, (2, 3), (4,)),
        op("mm", Work.MATMUL, (4,), (5,), products=SQUARE),
        op("mm", Work.MATMUL, (1,), (6,), products=SQUARE),
        op("mm", Work.MATMUL, (4, 2), (7,), BACK, products=SQUARE),
    ]
    image = (4, 32, 32, 64)
    memory = _memory(ops, dict.fromkeys((2, 3, 4), 6), shapes={2: image, 3: statistic, 4: image})
    assert _passing(memory)[4] // MIB - 3 == kept


@pytest.mark.parametrize(
    ("reader", "split", "wide"),
    [("gelu", (8, 8, 32), 2), ("gelu", (64, 32), 1), ("mul", (8, 8, 32), 1)],
)
def test_product_read_in_another_shape_is_kept_in_float32_for_who_takes_it(
    reader, split, wide
) -> None:
    ops = [
        op("addmm", Work.MATMUL, (1,), (2,), products=SQUARE),
        op(reader, Work.ELEMENTWISE, (2,), (3,)),
        op("mm", Work.MATMUL, (3,), (4,), products=SQUARE),
        op("gelu_backward", Work.ELEMENTWISE, (2, 4), (5,), BACK),
    ]
    flat, died, shapes = (64, 32), {2: 4, 3: 4}, {}
    _of_pixels(ops, died, shapes, (8, 8, 32))
    for shape, size in ((flat, MIB), (split, wide * MIB)):
        memory = _memory(ops, died, shapes={2: flat, 3: shape, 5: shape, **shapes})
        assert _passing(memory)[1] - 2 * MIB == size


@pytest.mark.parametrize("drawn", [MIB, 0])
def test_mask_is_kept_unless_its_gradient_draws_it_again(drawn) -> None:
    ops = [
        op("native_dropout", Work.ELEMENTWISE, (1,), (2, 3), drawn=MIB),
        op("mm", Work.MATMUL, (2,), (4,), products=SQUARE),
        op("native_dropout_backward", Work.ELEMENTWISE, (4, 3), (5,), BACK, drawn=drawn),
        op("mm", Work.MATMUL, (5,), (6,), BACK, products=SQUARE),
    ]
    made = recording(ops, {2: 2, 3: 3, 4: 3, 5: 4})
    found = lifetimes_of(made.ops, made.blocks, 0, Vmem(0))
    assert (3 in {life.storage for life in found.lives}) == (not drawn)


def test_product_whose_shape_is_changed_and_changed_back_is_kept_rounded() -> None:
    ops = [
        op("mm", Work.MATMUL, (1,), (2,), products=SQUARE),
        op("add", Work.ELEMENTWISE, (2, 1), (3,)),
        op("_log_softmax", Work.ELEMENTWISE, (3,), (4,)),
        op("_log_softmax_backward_data", Work.ELEMENTWISE, (4,), (5,), BACK),
    ]
    flat, split = (64, 32), (8, 8, 32)
    died, shapes, sizes = {2: 4, 3: 4, 4: 4}, {}, []
    _of_pixels(ops, died, shapes, split)
    for last in (split, flat):
        made = recording(ops, died)
        for number, shape in {2: flat, 3: split, 4: last, 5: last, **shapes}.items():
            made.blocks[number].shape = shape
        found = lifetimes_of(made.ops, made.blocks, 0, Vmem(0))
        sizes.append(max(life.size_bytes for life in found.lives if life.storage == 2))
    assert sizes == [2 * MIB, MIB]


@pytest.mark.parametrize("groups", [1, 64])
def test_operand_of_a_convolution_is_kept_as_it_is_whatever_its_groups(groups) -> None:
    more = {"products": ((groups, 4096, 9, 64 // groups),), "dtype": "bf16"}
    ops = [
        op("mm", Work.MATMUL, (1,), (2,), products=SQUARE, dtype="bf16"),
        op("silu", Work.ELEMENTWISE, (2,), (6,)),
        op("convolution", Work.MATMUL, (6,), (3,), **more),
        op("convolution_backward", Work.MATMUL, (6, 3), (4,), BACK, **more),
    ]
    # 4, which is there throughout, 2, from which 6 is computed again, and 3.
    assert _passing(_memory(ops, {2: 4, 3: 4, 6: 4}))[2] == MIB + 2 * MIB


def test_tensors_that_are_joined_are_kept_in_their_parts() -> None:
    ops = [
        op("mm", Work.MATMUL, (1,), (2,), products=SQUARE),
        op("mm", Work.MATMUL, (1,), (3,), products=SQUARE),
        op("cat", Work.MOVE, (2, 3), (4,)),
        op("mm", Work.MATMUL, (4,), (5,), products=SQUARE),
        op("mm", Work.MATMUL, (4,), (6,), BACK, products=SQUARE),
    ]
    made = recording(ops, dict.fromkeys((2, 3, 4), 5))
    made.blocks[4].size_bytes = 2 * MIB
    for storage, shape in {2: (1,), 3: (1,), 4: (2,)}.items():
        made.blocks[storage].shape = shape
    memory = memory_of(made.ops, made.blocks, (0, len(ops)), 1 << 40)
    assert _passing(memory)[3] == 2 * MIB + 2 * MIB  # the parts, and the two results


def test_parameters_of_a_script_that_is_one_step_take_hbm_while_they_exist() -> None:
    ops = [
        op("_to_copy", Work.MOVE, (), (1,)),
        op("mm", Work.MATMUL, (1,), (2,), products=SQUARE),
        op("mm", Work.MATMUL, (2,), (3,), products=SQUARE),
    ]
    made = recording(ops, dict.fromkeys((1, 2, 3), 3))
    made.blocks[1].category = Category.PARAMETERS
    made.step_ends = []
    memory = memory_of(made.ops, made.blocks, (0, len(ops)), 1 << 40, Vmem(64 * MIB))
    assert memory.curves[Category.PARAMETERS][:3] == [MIB] * 3


def _mm(read: int, written: int):
    return op("mm", Work.MATMUL, (read,), (written,), products=SQUARE)


def test_value_that_waits_longer_than_vmem_keeps_any_takes_hbm() -> None:
    ops = [_mm(1, 2), _mm(2, 3)]
    for longest, expected in ((1.0, 0), (0.5, MIB)):
        memory = _memory(ops, {2: 2}, vmem=Vmem(2 * MIB, (0.0, 1.0), longest))
        assert _passing(memory)[0] - MIB == expected


def test_value_larger_than_the_holes_before_it_takes_more_memory() -> None:
    ops = [_mm(1, 2), _mm(1, 3), _mm(2, 4), _mm(3, 5), _mm(5, 6), _mm(3, 6)]
    made = recording(ops, {2: 3, 3: 6, 4: 3, 5: 5})
    made.blocks[5].size_bytes = 2 * MIB
    made.blocks[6].size_bytes = MIB // 2  # no other value fits where this result is
    memory = memory_of(made.ops, made.blocks, (0, len(ops)), 1 << 40)
    # 2 and 3 live first, then 3 and 5, which does not fit where 2 was.
    assert memory.peak_bytes == MIB // 2 + MIB + MIB + 2 * MIB
    assert memory.holes_bytes == MIB


@pytest.mark.parametrize(("table", "kept"), [(MIB, 0), (16 * MIB, 2 * MIB)])
def test_rows_of_a_small_table_are_gathered_within_the_sum_that_reads_them(table, kept) -> None:
    ops = [
        op("mm", Work.MATMUL, (1,), (2,), products=SQUARE),
        op("index", Work.MOVE, (2,), (3,)),
        op("index_add", Work.MOVE, (3,), (4,)),
    ]
    made = recording(ops, {2: 3, 3: 3})
    made.blocks[2].size_bytes, made.blocks[3].size_bytes = table, 2 * MIB
    memory = memory_of(made.ops, made.blocks, (0, len(ops)), 1 << 40)
    assert _passing(memory)[1] == MIB + table + kept


def test_gathered_rows_take_whole_lanes() -> None:
    ops = [op("index", Work.MOVE, (1,), (2,)), _mm(2, 3)]
    memory = _memory(ops, {2: 2}, shapes={2: (4096, 32)})
    assert _passing(memory)[0] - MIB == 4 * MIB


def test_attention_without_whole_blocks_has_its_softmax_while_it_runs() -> None:
    length, size = 96, 2 * 96 * 128 * 4
    shape = (2, length, 128)
    more = {"scores": 2.0 * length**2, "head_dims": (128, 128)}
    ops = [
        op("sdpa", Work.ATTENTION, (1,), (2,), **more),
        op("sum", Work.MOVE, (2,), (3,)),
        op("sdpa_backward", Work.ATTENTION, (2, 3), (4,), BACK, gradient=True, **more),
    ]
    made = recording(ops, {2: 3, 3: 3})
    made.blocks[2].shape = shape
    made.blocks[4].size_bytes = result = size // 2  # no other value fits where this result is
    memory = memory_of(made.ops, made.blocks, (0, len(ops)), 1 << 40, Vmem(0))
    # In between 3, 4 and the result, rounded and as the sums that the gradient reads.
    sums = 2 * length * 128 * 4
    assert memory.holes_bytes == 0
    assert _passing(memory)[:3] == [
        result + MIB + size + sums,
        result + 2 * MIB + sums,
        result + 2 * MIB + size + sums,
    ]


def test_product_computes_the_elementwise_work_that_alone_reads_it() -> None:
    """As a ReLU's gradient is: the other operand ends there, and its place is taken."""
    ops = [
        op("tanh", Work.MOVE, (1,), (2,)),
        _mm(1, 3),
        op("threshold_backward", Work.ELEMENTWISE, (3, 2), (4,), BACK),
        _mm(4, 5),
        _mm(4, 6),
    ]
    results = 2 * MIB  # there throughout
    assert _passing(_memory(ops, {2: 5, 3: 5, 4: 5}))[1:4] == [MIB + results] * 3
    ops[2] = op("native_batch_norm_backward", Work.ELEMENTWISE, (3, 2), (4,), BACK)
    assert _passing(_memory(ops, {2: 5, 3: 5, 4: 5}))[3] > MIB + results


def test_random_numbers_are_drawn_once_for_several_readers() -> None:
    ops = [
        op("randn", Work.ELEMENTWISE, (), (2,), drawn=1.0),
        op("_to_copy", Work.ELEMENTWISE, (2,), (3,)),
        op("convolution", Work.MATMUL, (3,), (4,), products=SQUARE),
        op("convolution_backward", Work.MATMUL, (4, 3), (5,), BACK, products=SQUARE),
    ]
    found = recording(ops, {2: 4, 3: 4, 4: 4})
    lives = lifetimes_of(found.ops, found.blocks, 0, Vmem(0)).lives
    assert {life.storage for life in lives} == {3, 4}


@pytest.mark.parametrize(("reader", "kept"), [("mm", False), ("convolution", True), ("add", True)])
def test_random_operand_of_products_alone_is_drawn_for_each(reader, kept) -> None:
    work = Work.ELEMENTWISE if reader == "add" else Work.MATMUL
    ops = [
        op("randn", Work.ELEMENTWISE, (), (2,), drawn=1.0),
        op("mm", Work.MATMUL, (2, 1), (3,), products=SQUARE),
        op(reader, work, (3, 2), (4,), products=SQUARE if work is Work.MATMUL else ()),
    ]
    found = recording(ops, {2: 3, 3: 3})
    lives = lifetimes_of(found.ops, found.blocks, 0, Vmem(0)).lives
    assert (2 in {life.storage for life in lives}) == kept


@pytest.mark.parametrize("name", ["_to_copy", "div"])
def test_image_that_is_converted_for_convolutions_is_kept_as_they_want_it(name) -> None:
    ops = [
        op(name, Work.ELEMENTWISE, (1,), (3,)),
        op("convolution", Work.MATMUL, (3, 1), (4,), products=SQUARE),
        op("convolution_backward", Work.MATMUL, (4, 3, 1), (5,), BACK, products=SQUARE),
    ]
    kept = []
    for image in (True, False):
        if not image:  # a weight is converted again
            ops[1] = op("convolution", Work.MATMUL, (1, 3), (4,), products=SQUARE)
            ops[2] = op("convolution_backward", Work.MATMUL, (4, 1, 3), (5,), BACK, products=SQUARE)
        made = recording(ops, {3: 3, 4: 3})
        made.blocks[1] = Block(MIB, -1, Phase.FORWARD, "script.py:1")
        lives = lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives
        kept.append(3 in {life.storage for life in lives})
    assert kept == [True, False]


def test_cumulative_sums_are_written(planned) -> None:
    script = """
import torch
x = torch.nn.Parameter(torch.ones(4096, 16384, device="tpu"))
x.cumsum(0).square().sum().backward()
"""
    found = planned(script, "--target", "v5e:1x1")
    assert found["hbm"]["peak_bytes"] >= 2 * 4096 * 16384 * 4  # the sums, and the gradient


def test_narrow_matrices_of_batched_products_take_whole_tiles() -> None:
    ops = [
        op("bmm", Work.MATMUL, (1,), (2,), products=((64, 49, 32, 49),)),
        op("add", Work.ELEMENTWISE, (2,), (3,)),
        op("_softmax", Work.ELEMENTWISE, (3,), (4,)),
        op("bmm", Work.MATMUL, (4,), (5,), products=((64, 49, 49, 32),)),
    ]
    made = recording(ops, {2: 4, 3: 4, 4: 4})
    for storage, shape in {2: (64, 49, 49), 3: (8, 8, 49, 49), 4: (8, 8, 49, 49)}.items():
        made.blocks[storage].shape = shape
    sizes = padded_sizes(made.ops, made.blocks)
    assert [round(sizes[s] / MIB, 2) for s in (2, 3, 4)] == [round(56 * 128 / 49**2, 2)] * 3


@pytest.mark.parametrize(("width", "kept"), [(64, 2 * MIB), (128, MIB)])
def test_narrow_matrices_that_are_moved_for_batched_products_are_kept(width, kept) -> None:
    ops = [
        _mm(1, 2),
        op("clone", Work.MOVE, (2,), (3,)),
        _mm(1, 4),
        op("bmm", Work.MATMUL, (3,), (5,), products=((8, 64, width, 64),)),
    ]
    memory = _memory(ops, {2: 4, 3: 4, 5: 4}, shapes={2: (512, 512), 3: (8, 64, width)})
    alive = sum(memory.curves[c][2] for c in Category) - memory.holes_bytes
    assert alive == kept + MIB  # 5 is there throughout


def test_padding_before_a_convolution_takes_no_memory() -> None:
    ops = [
        _mm(1, 2),
        op("constant_pad_nd", Work.ELEMENTWISE, (2,), (3,)),
        op("convolution", Work.MATMUL, (3,), (4,), products=SQUARE),
        op("convolution_backward", Work.MATMUL, (3, 4), (5,), BACK, products=SQUARE),
    ]
    memory = _memory(ops, {2: 4, 3: 4, 4: 4})
    assert _passing(memory)[2] == MIB + 2 * MIB  # 5, and 2 and 4


@pytest.mark.parametrize(("reader", "kept"), [("native_batch_norm_backward", 1), ("mul", 3)])
def test_gradient_that_a_norm_goes_over_twice_is_kept(reader, kept) -> None:
    ops = [
        *(op("tanh", Work.MOVE, (1,), (number,)) for number in (2, 3, 4)),
        op("addcmul", Work.ELEMENTWISE, (2, 3, 4), (5,), BACK),
        op(reader, Work.ELEMENTWISE, (5,), (6,), BACK),
        op("mul", Work.ELEMENTWISE, (5,), (7,), BACK),
    ]
    memory = _memory(ops, dict.fromkeys((2, 3, 4, 5), 6))
    assert _passing(memory)[5] - 2 * MIB == kept * MIB


@pytest.mark.parametrize(("size", "tables"), [(1000, 2.0), (MIB, 7.5 + 4.75), (64 * MIB, 2.0)])
def test_tables_of_addresses_count_for_what_is_copied_to_vmem(size, tables) -> None:
    ops = [_mm(1, 2), _mm(2, 3)]
    made = recording(ops, {2: 2})
    for storage in (2, 3):
        made.blocks[storage].size_bytes = size
    without, having = (
        memory_of(made.ops, made.blocks, (0, 2), 1 << 40, table_bytes=size).peak_bytes
        for size in (0, 1000)
    )
    assert having - without == round(1000 * tables)


@pytest.mark.parametrize("between", ["pixel_shuffle", "relu"])
def test_shuffled_pixels_are_written_for_their_convolution(between) -> None:
    ops = [
        op("tanh", Work.MOVE, (1,), (2,)),
        op(between, Work.ELEMENTWISE, (2,), (3,)),
        op("relu", Work.ELEMENTWISE, (3,), (4,)),
        op("convolution", Work.MATMUL, (4,), (5,)),
    ]
    shape = (16, 8, 8, 8)
    memory = _memory(ops, {2: 4, 3: 4, 4: 4}, shapes=dict.fromkeys((2, 3, 4), shape))
    written = _passing(memory)[2] - _passing(memory)[1]
    assert (written > 0) == (between == "pixel_shuffle")


@pytest.mark.parametrize(("reader", "size"), [("gelu", 2 * MIB), ("relu", MIB), ("clone", MIB)])
def test_product_that_is_compared_or_moved_for_another_is_kept_rounded(reader, size) -> None:
    ops = [_mm(1, 2), op(reader, Work.ELEMENTWISE, (2,), (3,)), _mm(3, 4), _mm(3, 5)]
    ops[0].dtype = "bf16"
    died, shapes = {2: 4, 3: 4}, {2: (64, 32), 3: (8, 8, 32)}
    _of_pixels(ops, died, shapes, (8, 8, 32))
    memory = _memory(ops, died, shapes=shapes)
    assert _passing(memory)[1] - 2 * MIB == size


@pytest.mark.parametrize(("factor", "then", "wide"), [(1, "sum", 2), (1, "mm", 1), (64, "mm", 2)])
def test_product_that_is_multiplied_is_kept_rounded_but_for_sums_and_broadcasts(
    factor, then, wide
) -> None:
    work = Work.MATMUL if then == "mm" else Work.ELEMENTWISE
    ops = [
        _mm(1, 2),
        op("mul", Work.ELEMENTWISE, (2, 9), (3,), read_bytes=(MIB, MIB // factor)),
        op(then, work, (3,), (4,), products=SQUARE if then == "mm" else ()),
    ]
    ops[0].dtype = "bf16"
    died, shapes = {2: 3, 3: 3}, {2: (64, 32), 3: (8, 8, 32)}
    _of_pixels(ops, died, shapes, (8, 8, 32))
    memory = _memory(ops, died, shapes=shapes)
    assert memory.curves[Category.TEMPORARIES][0] - memory.holes_bytes == wide * MIB


@pytest.mark.parametrize(("dtype", "kept"), [("bf16", MIB), ("f32", 0)])
@pytest.mark.parametrize(
    ("moves", "shape", "otherwise"),
    [
        ("clone", (16, 64, 512), True),
        ("roll", (16, 64, 512), True),
        ("_to_copy", (16, 8, 8, 512), True),  # images, as autocast rounds them
        ("_to_copy", (16, 64, 512), False),  # rows, as the product has them
    ],
)
def test_norm_that_lies_otherwise_than_its_product_is_kept_unless_operands_are_split(
    moves, shape, otherwise, dtype, kept
) -> None:
    ops = [
        _mm(1, 2),
        op("native_layer_norm", Work.ELEMENTWISE, (2,), (3,)),
        op(moves, Work.ELEMENTWISE if moves == "roll" else Work.MOVE, (3,), (4,)),
        op("mm", Work.MATMUL, (4,), (5,), products=SQUARE, dtype=dtype),
        op("mm", Work.MATMUL, (4, 2), (6,), BACK, products=SQUARE, dtype=dtype),
    ]
    memory = _memory(ops, dict.fromkeys((2, 3, 4), 5), shapes={3: shape})
    # 5 and 6, which are there throughout, and 2.
    assert _passing(memory)[3] == 3 * MIB + (kept if otherwise else 0)


@pytest.mark.parametrize(("width", "size"), [(128, MIB), (96, MIB * 128 / 96), (32, MIB)])
def test_products_of_many_features_take_whole_lanes(width, size) -> None:
    memory = _memory([_mm(1, 2), _mm(2, 3)], {2: 2}, shapes={2: (4096, width)})
    assert _passing(memory)[0] - MIB == round(size)


@pytest.mark.parametrize(("then", "kept"), [("sub_", 1), ("index_put_", 2)])
def test_value_that_is_changed_in_place_is_computed_again_like_any_other(then, kept) -> None:
    work = Work.ELEMENTWISE if then == "sub_" else Work.MOVE
    ops = [
        _mm(1, 2),
        op("fill_", Work.ELEMENTWISE, (), (3,)),
        op(then, work, (3, 2), (3,)),
        op("mul", Work.ELEMENTWISE, (3, 2), (4,)),
        _mm(4, 5),
    ]
    # 5, which is there throughout, 2, and what is no chain of elementwise work.
    assert _passing(_memory(ops, dict.fromkeys((2, 3, 4), 5)))[3] == MIB + kept * MIB


@pytest.mark.parametrize(("reader", "kept"), [("cat", 1), ("neg", 0)])
def test_elementwise_result_that_is_joined_for_a_product_is_kept(reader, kept) -> None:
    work = Work.MOVE if reader == "cat" else Work.ELEMENTWISE
    ops = [
        _mm(1, 2),
        op("silu", Work.ELEMENTWISE, (2,), (3,)),
        op(reader, work, (3,), (4,)),
        _mm(4, 5),
        op("mm", Work.MATMUL, (4, 2), (6,), BACK, products=SQUARE),
    ]
    # 5 and 6, which are there throughout, and 2.
    assert _passing(_memory(ops, dict.fromkeys((2, 3, 4), 5)))[3] == 3 * MIB + kept * MIB


@pytest.mark.parametrize(
    ("name", "reader", "kept"),
    [
        ("slice_backward", "mm", 2),
        ("mul", "mm", 0),
        ("upsample_nearest2d", "convolution", 1),
        ("mul", "convolution", 0),
    ],
)
def test_what_is_padded_or_repeated_for_a_product_is_written(name, reader, kept) -> None:
    ops = [
        _mm(1, 2),
        op("neg", Work.ELEMENTWISE, (2,), (3,)),
        op(name, Work.ELEMENTWISE, (3,), (4,)),
        op(reader, Work.MATMUL, (4,), (5,), products=SQUARE),
    ]
    made = recording(ops, dict.fromkeys((2, 3, 4), 4))
    found = lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives
    assert len({life.storage for life in found} & {3, 4}) == kept


@pytest.mark.parametrize(
    ("gradient", "rows", "kept"),
    [("_log_softmax_backward_data", 7, 0), ("_log_softmax_backward_data", 4, 2), ("neg", 7, 2)],
)
def test_gradient_of_logits_that_keep_nearly_all_rows_is_not_padded(gradient, rows, kept) -> None:
    ops = [
        _mm(1, 2),
        op(gradient, Work.ELEMENTWISE, (2,), (3,)),
        op("slice_backward", Work.ELEMENTWISE, (3,), (4,)),
        _mm(4, 5),
    ]
    ops[1].write_bytes = ops[2].read_bytes = (rows * MIB // 8,)
    made = recording(ops, dict.fromkeys((2, 3, 4), 4))
    found = lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives
    assert len({life.storage for life in found} & {3, 4}) == kept


@pytest.mark.parametrize(
    ("name", "reader", "size", "kept"),
    [
        ("gelu", "native_batch_norm", MIB, 1),
        ("relu", "native_batch_norm", MIB, 0),
        ("gelu", "mul", MIB, 0),
        ("gelu", "linalg_vector_norm", MIB // 64, 0),  # which is one pass
    ],
)
def test_costly_elementwise_work_is_not_repeated_by_the_passes_of_a_norm(
    name, reader, size, kept
) -> None:
    ops = [
        op("convolution", Work.MATMUL, (1,), (2,)),
        op(name, Work.ELEMENTWISE, (2,), (3,)),
        op(reader, Work.ELEMENTWISE, (3,), (4,), write_bytes=(size,)),
        op("convolution", Work.MATMUL, (4,), (5,)),
        op(f"{name}_backward", Work.ELEMENTWISE, (5, 2), (6,), BACK),
    ]
    made = recording(ops, dict.fromkeys((2, 3, 4, 5), 5))
    lives = lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives
    assert (3 in {life.storage for life in lives}) == bool(kept)


def test_a_result_that_changes_itself_is_followed_to_no_product() -> None:
    ops = [
        op("copy_", Work.MOVE, (2,), (2,)),
        op("slice_backward", Work.ELEMENTWISE, (2,), (3,)),
        _mm(3, 4),
    ]
    assert _memory(ops, {2: 3, 3: 3}, shapes={3: (8, 512, 1000), 4: (8, 512, 1000)}).fits


def test_what_the_script_holds_between_steps_is_no_activation() -> None:
    made = recording([_mm(1, 2), _mm(2, 3)], {2: 2})
    made.blocks[1] = Block(MIB, 0, Phase.FORWARD, "script.py:1")
    memory = memory_of(made.ops, made.blocks, (1, 2), 1 << 40, Vmem(0))
    assert memory.at_peak[Category.HELD] == 2 * MIB  # 2 is of the operator before the step
    assert memory.at_peak[Category.ACTIVATIONS] == MIB


@pytest.mark.parametrize(("batch", "times"), [(4, 1.0), (8, 21.3), (16, 10.7)])
def test_picture_of_three_channels_lies_by_pixels_only_in_the_smallest_batches(
    batch, times
) -> None:
    assert round(image_padding((batch, 3, 256, 256)), 1) == times


CYCLE = """
import gc
import torch
gc.set_threshold(0)
cycle = [torch.zeros(1024, 1024, device="tpu")]
cycle.append(cycle)
del cycle
weight = torch.nn.Parameter(torch.zeros(8, 8, device="tpu"))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(2):
    weight.square().sum().backward()
    optimizer.step()
"""


def test_what_making_the_model_left_in_a_cycle_takes_no_memory_in_the_step(planned) -> None:
    assert planned(CYCLE, "--target", "v5e:1x1")["hbm"]["peak_bytes"] < MIB


@pytest.mark.parametrize(
    ("reads", "size"),
    [
        ((MIB * 3 // 4,) * 2, MIB * 3 // 4),  # as of what was joined with an operand of the step
        ((MIB * 3 // 4, MIB // 4), MIB),  # both parts
        ((MIB // 4,) * 2, MIB),  # perhaps not the same part
    ],
)
def test_product_of_which_one_part_is_read_is_written_in_that_part(reads, size) -> None:
    first, second = (op("cumsum", Work.MOVE, (2,), (number,)) for number in (3, 4))
    first.read_bytes, second.read_bytes = ((one,) for one in reads)
    memory = _memory([_mm(1, 2), first, second], {2: 3}, shapes={2: (512, 512)})
    # 3 and 4, which are there throughout.
    assert _passing(memory)[1] - memory.holes_bytes == 2 * MIB + size
