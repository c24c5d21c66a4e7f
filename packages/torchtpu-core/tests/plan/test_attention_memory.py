# SPDX-License-Identifier: Apache-2.0
"""What attention without kernels, and written out with dropout, keeps in HBM by XLA's rules."""

from __future__ import annotations

import pytest
from torchtpu_core.plan.fusion import fuse
from torchtpu_core.plan.lifetimes import lifetimes_of
from torchtpu_core.plan.paddings import matrix_padding
from torchtpu_core.plan.records import Phase, Work
from torchtpu_core.plan.tiles import padded_sizes
from torchtpu_core.plan.vmem import Vmem
from torchtpu_core.testing.recordings import MIB, op, recording

SQUARE = ((1, 4096, 4096, 4096),)
BACK = Phase.BACKWARD


def _mm(reads, written, phase=Phase.FORWARD, **more):
    return op("mm", Work.MATMUL, reads, (written,), phase, products=SQUARE, **more)


def _held(ops, index, shapes=None):
    """Sizes of the values for a part of the step that are there at an operator, by storage."""
    made = recording(ops, {number: len(ops) for one in ops for number in one.writes})
    for number, shape in (shapes or {}).items():
        made.blocks[number].shape = shape
    found: dict[int, list[int]] = {}
    for life in lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives:
        if life.first <= index < life.end:
            found.setdefault(life.storage, []).append(life.size_bytes)
    return {storage: sorted(sizes) for storage, sizes in found.items()}


def _attention(tokens, *, parts, width=64, drawn=0):
    """Attention without kernels, and its gradient two products later: operators, and its shape."""
    pairs = {"scores": 8.0 * tokens**2, "head_dims": (width, width), "drawn": drawn}
    operands = (2, 2, 2) if parts else (2, 3, 4)
    ops = [
        *(_mm((1,), number) for number in sorted(set(operands))),
        op("sdpa", Work.ATTENTION, operands, (5,), **pairs),
        _mm((5,), 6),
        _mm((6,), 7),
        op("sdpa_backward", Work.ATTENTION, (*operands, 5, 7), (8,), BACK, gradient=True, **pairs),
        _mm((5, 8), 9, BACK),
    ]
    return ops, (4, 2, tokens, width)


@pytest.mark.parametrize("drawn", [0, 1])
@pytest.mark.parametrize(("tokens", "times"), [(256, 1.0), (192, 256 / 192), (184, 256 / 184)])
def test_operands_of_whole_scores_lie_as_their_rows_and_heads_waste_less(
    tokens, times, drawn
) -> None:
    ops, shape = _attention(tokens, parts=False, drawn=drawn)
    held = _held(ops, 5, {5: shape})
    assert [held[number] for number in (2, 3, 4)] == [[round(times * MIB)]] * 3


@pytest.mark.parametrize(("parts", "value"), [(False, 2 * MIB), (True, MIB)])
@pytest.mark.parametrize("tokens", [64, 56, 200])
def test_padded_heads_are_kept_as_tokens_and_so_is_the_result(tokens, parts, value) -> None:
    ops, shape = _attention(tokens, parts=parts)
    tokens_of = dict.fromkeys((2,) if parts else (2, 3), (4, tokens, 128 * (3 if parts else 1)))
    held = _held(ops, len(ops) - 4, {5: shape, **tokens_of})
    if tokens == 200 and not parts:  # 1.28 times their bytes pay only together
        assert held[2][0] > MIB
        return
    assert held[2] == [MIB]
    assert held[2 if parts else 4] == [value]
    assert held[5] == [MIB]


@pytest.mark.parametrize("tokens", [192, 184])
def test_result_of_whole_scores_is_there_rounded_and_unrounded(tokens) -> None:
    ops, shape = _attention(tokens, parts=False)
    unrounded = round(4 * 2 * tokens * 64 * 4 * matrix_padding((tokens, 64)))
    assert _held(ops, 5, {5: shape})[5] == sorted([MIB, unrounded])


@pytest.mark.parametrize("drawn", [0, 1])
def test_softmax_of_whole_scores_is_there_while_attention_or_its_gradient_runs(drawn) -> None:
    ops, shape = _attention(512, parts=False, drawn=drawn)
    scores = 4 * 2 * 512 * 512 * 4  # f32[4,2,512,512]
    forward, gradient = (i for i, one in enumerate(ops) if one.work is Work.ATTENTION)
    held = [_held(ops, index, {5: shape}) for index in range(len(ops))]
    assert [scores in at.get(5, ()) for at in held] == [i == forward for i in range(len(ops))]
    assert scores in held[gradient][8]


@pytest.mark.parametrize(("tokens", "copies"), [(256, 4), (250, 3)])
def test_values_are_copied_out_of_a_projection_whose_rows_fill_tiles(tokens, copies) -> None:
    ops, shape = _attention(tokens, parts=True)
    assert len(_held(ops, 3, {5: shape})[2]) == copies


@pytest.mark.parametrize(("gradient", "times"), [(True, 2), (False, None)])
def test_gradients_of_whole_scores_take_whole_tiles(gradient, times) -> None:
    ops = [op("sdpa", Work.ATTENTION, (1,), (2,), gradient=gradient, head_dims=(64, 64))]
    made = recording(ops, {2: 2})
    made.blocks[2].shape = (4, 2, 64, 64)
    assert padded_sizes(made.ops, made.blocks).get(2) == (times and times * MIB)


@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("made_by", ["_softmax", "sigmoid"])
def test_softmax_that_dropout_scales_is_written_for_its_product(made_by, cast) -> None:
    dropped = 6 if cast else 4
    ops = [
        _mm((1,), 2),
        op(made_by, Work.ELEMENTWISE, (2,), (3,)),
        op("native_dropout", Work.ELEMENTWISE, (3,), (4, 5), drawn=MIB),
        *([op("_to_copy", Work.MOVE, (4,), (6,))] if cast else []),
        _mm((dropped,), 7),
        _mm((7,), 8),
        _mm((8, dropped), 9, BACK),
        op("native_dropout_backward", Work.ELEMENTWISE, (9, 5), (10,), BACK),
        op(f"{made_by}_backward_data", Work.ELEMENTWISE, (10, 3), (11,), BACK),
        _mm((11,), 12, BACK),
    ]
    held = _held(ops, 4 + cast)
    assert 2 in held  # from the scores the softmax is computed again
    assert 3 not in held
    assert (dropped in held) == (made_by == "_softmax")


@pytest.mark.parametrize(
    ("moved", "kept"),
    [
        ((8, 4, 512), True),  # rows by the other dimension of a batch
        ((4, 512, 8), False),  # features are no longer the last
    ],
)
def test_norm_whose_rows_are_moved_for_a_float32_product_is_written(moved, kept) -> None:
    ops = [
        _mm((1,), 2),
        op("native_layer_norm", Work.ELEMENTWISE, (2,), (3,)),
        op("clone", Work.MOVE, (3,), (4,)),
        _mm((4,), 5, dtype="f32"),
        _mm((5,), 6),
        _mm((6, 4), 7, BACK, dtype="f32"),
        op("mul", Work.ELEMENTWISE, (7, 2), (8,), BACK),
        _mm((8,), 9, BACK),
    ]
    assert (4 in _held(ops, 4, {3: (4, 8, 512), 4: moved})) == kept


@pytest.mark.parametrize(("rows", "size"), [(64, 2 * MIB), (50, MIB)])
def test_product_whose_rows_fill_no_tiles_has_its_readers_shape(rows, size) -> None:
    ops = [
        _mm((1,), 2, dtype="bf16"),
        op("gelu", Work.ELEMENTWISE, (2,), (3,)),
        _mm((3,), 4),
        _mm((4,), 5),
        op("gelu_backward", Work.ELEMENTWISE, (5, 2), (6,), BACK),
        _mm((6,), 7),
    ]
    # Tokens that are made of an image are not kept as rows.
    ops += [op("convolution", Work.MATMUL, (1,), (90,)), op("clone", Work.MOVE, (90,), (91,))]
    whole, parts = (4 * rows, 512), (4, rows, 512)
    shapes = {2: whole, 3: parts, 5: parts, 6: parts, 90: (4, 512, rows), 91: parts}
    assert _held(ops, 2, shapes)[2] == [size]


@pytest.mark.parametrize(("vectors", "stays"), [(2, True), (1, False), (0, False)])
def test_kernel_whose_statistics_stay_in_vmem_moves_operands_and_results_alone(
    vectors, stays
) -> None:
    more = {"scores": 1e9, "head_dims": (128, 128), "flash": True}
    ops = [
        op("sdpa", Work.ATTENTION, (1,), (2, 9), kernel_bytes=64.0 * MIB, **more),
        _mm((2, 9), 3),
    ]
    made = recording(ops, {2: 2, 9: 2})
    vector = MIB // 256 * 128 * 4  # a row of 128 two-byte elements: a float32 in 128 lanes
    found = lifetimes_of(ops, made.blocks, 0, Vmem(vectors * vector + 8 * MIB * (vectors > 1)))
    assert (0 in found.scores) == stays
    moved = fuse(ops, made.blocks, 0).staying(ops, made.blocks, set(), found.scores).moved_bytes
    assert moved[0] == (3 if stays else 64) * MIB
