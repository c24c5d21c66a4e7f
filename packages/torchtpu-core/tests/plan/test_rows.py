# SPDX-License-Identifier: Apache-2.0
"""Tokens that are kept as rows of products, and what of their stream takes HBM then."""

from __future__ import annotations

import pytest
from torchtpu_core.plan.lifetimes import lifetimes_of
from torchtpu_core.plan.records import Phase, Work
from torchtpu_core.plan.rows import streams_of
from torchtpu_core.plan.uses import uses_of
from torchtpu_core.plan.vmem import Vmem
from torchtpu_core.testing.recordings import MIB, op, recording

TOKENS, ROWS = (4, 64, 512), (256, 512)
BACK = Phase.BACKWARD


def _mm(reads, written, phase=Phase.FORWARD, dtype="bf16"):
    return op(
        *("mm", Work.MATMUL, reads, (written,), phase),
        products=((1, 4096, 4096, 4096),),
        dtype=dtype,
    )


def _written(ops, shapes, died) -> dict[int, int]:
    """Bytes of the values that take HBM for a part of the step, by storage."""
    made = recording(ops, dict.fromkeys(died, len(ops)))
    for storage, shape in shapes.items():
        made.blocks[storage].shape = shape
    lives = lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives
    return {life.storage: life.size_bytes for life in lives}


@pytest.mark.parametrize(
    ("source", "tokens", "found"),
    [
        (ROWS, TOKENS, {(4, 64): True}),  # of a product, or gathered
        ((256, 1, 512), TOKENS, {(4, 64): True}),
        ((512,), TOKENS, {(4, 64): True}),  # broadcast
        ((4, 512, 64), TOKENS, {(4, 64): False, (4, 512): False}),  # pixels of an image
        ((64, 4, 512), TOKENS, {(4, 64): False}),  # batch and positions swapped
        ((4, 8, 8, 512), TOKENS, {(4, 64): False}),
        ((248, 512), (4, 62, 512), {}),  # rows that fill no tiles
    ],
)
def test_tokens_are_rows_unless_they_are_made_otherwise(source, tokens, found) -> None:
    made = recording(
        [_mm((1,), 2), op("add", Work.ELEMENTWISE, (2,), (3,)), _mm((3,), 4)], {2: 2, 3: 2}
    )
    made.blocks[2].shape, made.blocks[3].shape = source, tokens
    assert streams_of(made.ops, made.blocks) == found


@pytest.mark.parametrize(("name", "rows"), [("_log_softmax", True), ("add", False)])
def test_losses_of_classes_in_the_second_dimension_move_no_tokens(name, rows) -> None:
    ops = [
        op("add", Work.ELEMENTWISE, (1,), (2,)),
        op(name, Work.ELEMENTWISE, (2,), (3,)),
        op("_to_copy", Work.MOVE, (3,), (4,)),
    ]
    made = recording(ops, {2: 2, 3: 3, 4: 3})
    for storage, shape in ((1, ROWS), (2, TOKENS), (3, (4, 512, 64)), (4, (4, 512, 64))):
        if storage in made.blocks:
            made.blocks[storage].shape = shape
    assert streams_of(made.ops, made.blocks)[4, 64] == rows


def test_tokens_that_are_moved_are_no_rows_in_either_shape() -> None:
    ops = [
        op("native_layer_norm", Work.ELEMENTWISE, (1,), (2,)),
        op("clone", Work.MOVE, (2,), (3,)),
    ]
    made = recording(ops, {2: 1, 3: 1})
    made.blocks[2].shape, made.blocks[3].shape = TOKENS, (64, 4, 512)
    assert streams_of(made.ops, made.blocks) == {(4, 64): False}


@pytest.mark.parametrize(
    ("source", "dtype", "written"),
    [
        (ROWS, "bf16", False),
        ((4, 512, 64), "bf16", True),
        (ROWS, "f32", True),  # operands that are split into parts
    ],
)
@pytest.mark.parametrize("cast", [True, False])
def test_products_of_rows_compute_norms_and_others_read_them(source, dtype, written, cast) -> None:
    norm = 4 if cast else 3
    ops = [
        _mm((1,), 2),
        op("native_layer_norm", Work.ELEMENTWISE, (2,), (3,)),
        op("_to_copy", Work.MOVE, (3,), (4,)),
        _mm((norm,), 5, dtype=dtype),
        _mm((norm, 2), 6, BACK, dtype),
    ]
    shapes = {2: source, 3: TOKENS, 4: TOKENS, 5: ROWS, 6: ROWS}
    found = _written(ops, shapes, (2, 3, 4))
    # Casts of norms are part of products of float32, whatever their shape.
    assert (norm in found) == (written and not (cast and dtype == "f32"))


def test_written_out_norm_is_computed_within_products_of_rows() -> None:
    ops = [
        _mm((1,), 2),
        op("mean", Work.ELEMENTWISE, (2,), (3,), write_bytes=(MIB // 512,)),
        op("mul", Work.ELEMENTWISE, (2, 3), (4,)),
        _mm((4,), 5),
        _mm((4, 2), 6, BACK),
    ]
    for source, written in ((ROWS, False), ((4, 512, 64), True)):
        assert (4 in _written(ops, {2: source, 4: TOKENS}, (2, 3, 4))) == written


def test_hidden_layer_of_rows_is_kept_rounded() -> None:
    ops = [
        _mm((1,), 2),
        op("gelu", Work.ELEMENTWISE, (2,), (3,)),
        _mm((3,), 4),
        _mm((1,), 7),
        op("add", Work.ELEMENTWISE, (7,), (8,)),
        op("gelu_backward", Work.ELEMENTWISE, (4, 2, 8), (5,), BACK),
        _mm((5,), 6, BACK),
    ]
    for source, size in ((ROWS, MIB), ((4, 512, 64), 2 * MIB)):
        shapes = {2: ROWS, 3: TOKENS, 5: TOKENS, 7: source, 8: TOKENS}
        assert _written(ops, shapes, (2, 3, 5, 7, 8))[2] == size


@pytest.mark.parametrize(
    ("source", "split", "size"),
    [
        ((8, 64, 512), (8, 4, 16, 512), MIB),  # rows of each expert
        ((256, 1024), (8, 4, 16, 512), 2 * MIB),
        ((8, 60, 512), (8, 5, 12, 512), MIB),  # which a product has itself
    ],
)
def test_hidden_layer_of_experts_is_kept_rounded(source, split, size) -> None:
    ops = [
        _mm((1,), 2),
        op("gelu", Work.ELEMENTWISE, (2,), (3,)),
        _mm((3,), 4),
        op("gelu_backward", Work.ELEMENTWISE, (4, 2), (5,), BACK),
        _mm((5,), 6, BACK),
    ]
    shapes = {2: source, 3: split, 4: source, 5: split}
    assert _written(ops, shapes, (2, 3, 4, 5))[2] == size


@pytest.mark.parametrize(("also_read", "kept"), [(False, True), (True, False)])
def test_sum_of_a_stream_is_written_instead_of_the_product_it_ends(also_read, kept) -> None:
    """A float32 sum of a bfloat16 product and the stream, which later products read."""
    ops = [
        op("tanh", Work.MOVE, (1,), (9,)),
        _mm((1,), 2),
        op("add", Work.ELEMENTWISE, (9, 2), (3,), write_bytes=(2 * MIB,)),
        *(_mm((3, 9, 2) if also_read else (3, 9), 20 + i) for i in range(3)),
    ]
    made = recording(ops, dict.fromkeys((2, 3, 9), len(ops)))
    made.blocks[3].size_bytes = made.blocks[9].size_bytes = 2 * MIB
    lives = {life.storage: life for life in lifetimes_of(ops, made.blocks, 0, Vmem(0)).lives}
    # Of a product that others read as well the sum is made again, which moves less.
    assert (3 in lives) == kept
    assert lives[2].end == (3 if kept else len(ops))


@pytest.mark.parametrize("source_bytes", [2 * MIB, 4 * MIB])
def test_value_that_is_rounded_for_each_of_its_products_is_rounded_once(source_bytes) -> None:
    casts = [
        op("_to_copy", Work.MOVE, (2,), (n,), read_bytes=(2 * MIB,), size=MIB) for n in (3, 4, 5)
    ]
    roll = op("roll", Work.MOVE, (1,), (2,))
    products = [_mm((n, 2), 10 + n, BACK) for n in (3, 4, 5)]
    ops = [roll, *casts, *products]
    made = recording(ops, dict.fromkeys((2, 3, 4, 5), len(ops)))
    made.blocks[2].size_bytes = source_bytes
    for storage in (2, 3, 4, 5):
        made.blocks[storage].shape = TOKENS
    repeats = uses_of(ops, made.blocks, 0).repeats
    # Half of a tensor may be another half each time.
    assert repeats == ({4: 3, 5: 3} if source_bytes == 2 * MIB else {})
