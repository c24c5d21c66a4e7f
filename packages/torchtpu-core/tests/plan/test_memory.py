# SPDX-License-Identifier: Apache-2.0
"""Which values of a step take HBM: recordings made by hand, and the rules of XLA's compiler."""

from __future__ import annotations

import pytest
from torchtpu_core.plan.memory import memory_of
from torchtpu_core.plan.records import Category, Phase, Work
from torchtpu_core.testing.recordings import MIB, op, recording

SQUARE = ((1, 4096, 4096, 4096),)
BACK = Phase.BACKWARD


def _memory(ops, died, *, shapes=None, vmem_bytes=0):
    made = recording(ops, died)
    for number, shape in (shapes or {}).items():
        made.blocks[number].shape = shape
    return memory_of(made.ops, made.blocks, (0, len(ops)), 1 << 40, vmem_bytes)


def _passing(memory) -> list[int]:
    """Bytes of values that live for a part of the step, before each operator."""
    kept = (Category.ACTIVATIONS, Category.TEMPORARIES)
    return [sum(memory.curves[c][i] for c in kept) for i in range(len(memory.curves[kept[0]]))]


def test_attention_holds_its_statistics_in_whole_vectors_while_it_runs() -> None:
    ops = [
        op("sdpa", Work.ATTENTION, (1,), (2,), scores=1e9, head_dims=(128, 128)),
        op("mm", Work.MATMUL, (2,), (3,), products=SQUARE),
    ]
    first, then = _passing(_memory(ops, {2: 2}))[:2]
    # A row of 128 two-byte elements has two statistics, each a float32 in 128 lanes.
    assert first - then == MIB // 256 * 2 * 128 * 4


@pytest.mark.parametrize("width", [128, 64])
def test_attention_keeps_narrow_heads_for_its_gradient_in_whole_vectors(width) -> None:
    more = {"scores": 1e9, "head_dims": (width, width)}
    ops = [
        op("mm", Work.MATMUL, (1,), (2,), products=SQUARE),
        op("sdpa", Work.ATTENTION, (2,), (3,), **more),
        op("sum", Work.MOVE, (3,), (4,)),
        op("sdpa_backward", Work.ATTENTION, (2, 3, 4), (5,), BACK, gradient=True, **more),
    ]
    memory = _memory(ops, {2: 4, 3: 4, 4: 4})
    others = 2 * MIB  # 4, and 5, which is there throughout
    total = sum(memory.curves[c][2] for c in Category)
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


def test_sum_that_many_read_is_kept_beside_its_operands() -> None:
    memory, middle = _chain(readers=4, operands=2)
    assert memory.curves[Category.ACTIVATIONS][middle] == (4 + 2) * MIB + 3 * MIB


def test_value_that_fits_vmem_throughout_takes_no_hbm() -> None:
    ops = [
        op("mm", Work.MATMUL, (1,), (2,), products=SQUARE),
        op("mm", Work.MATMUL, (2,), (3,), products=SQUARE),
    ]
    for room, expected in ((0, MIB), (2 * MIB, 0)):
        memory = _memory(ops, {2: 2}, vmem_bytes=room)
        assert _passing(memory)[0] - MIB == expected


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


@pytest.mark.parametrize(("reader", "wide"), [("gelu", 2), ("mul", 1)])
def test_product_read_in_another_shape_is_kept_in_float32_for_who_takes_it(reader, wide) -> None:
    ops = [
        op("addmm", Work.MATMUL, (1,), (2,), products=SQUARE),
        op(reader, Work.ELEMENTWISE, (2,), (3,)),
        op("mm", Work.MATMUL, (3,), (4,), products=SQUARE),
        op("gelu_backward", Work.ELEMENTWISE, (2, 4), (5,), BACK),
    ]
    flat, split = (64, 32), (8, 8, 32)
    for shape, size in ((flat, MIB), (split, wide * MIB)):
        memory = _memory(ops, {2: 4, 3: 4}, shapes={2: flat, 3: shape, 5: shape})
        assert _passing(memory)[1] - 2 * MIB == size


@pytest.mark.parametrize(
    ("groups", "dtype", "size"), [(1, "bf16", MIB), (64, "bf16", 2 * MIB), (64, "f32", MIB)]
)
def test_bfloat16_operand_of_a_grouped_convolution_is_kept_in_float32(groups, dtype, size) -> None:
    products = ((groups, 4096, 9, 64 // groups),)
    more = {"products": products, "dtype": dtype}
    ops = [
        op("mm", Work.MATMUL, (1,), (2,), products=SQUARE, dtype=dtype),
        op("convolution", Work.MATMUL, (2,), (3,), **more),
        op("convolution_backward", Work.MATMUL, (2, 3), (4,), BACK, **more),
    ]
    result = MIB  # 4, which is there throughout
    gradient = size  # 3, which the backward convolution reads
    assert _passing(_memory(ops, {2: 3, 3: 3}))[1] - result == size + gradient


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
    memory = memory_of(made.ops, made.blocks, (0, len(ops)), 1 << 40, 64 * MIB)
    assert memory.curves[Category.PARAMETERS][:3] == [MIB] * 3
