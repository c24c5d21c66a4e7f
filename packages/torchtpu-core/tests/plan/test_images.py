# SPDX-License-Identifier: Apache-2.0
"""What takes HBM of linear layers over images that convolutions made."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torchtpu_core.plan.attention_memory import attention_lives
from torchtpu_core.plan.images import images_of, kept_beside, products_of_images
from torchtpu_core.plan.lifetimes import lifetimes_of
from torchtpu_core.plan.records import Op, Phase, Recording, Work
from torchtpu_core.plan.tiles import padded_sizes
from torchtpu_core.plan.uses import uses_of
from torchtpu_core.plan.vmem import Vmem
from torchtpu_core.testing.recordings import MIB, op, recording

IMAGE, HIDDEN = (8, 128, 16, 32), (4096, 512)
BACK = Phase.BACKWARD


def _recording(ops: list[Op], shapes: dict[int, tuple[int, ...]]) -> Recording:
    made = recording(ops, dict.fromkeys(shapes, len(ops)))
    for storage, shape in shapes.items():
        made.blocks[storage].shape = shape
    return made


def _linear(products, reads=(2,), written=3, dtype="bf16", phase=Phase.FORWARD) -> Op:
    return op("addmm", Work.MATMUL, reads, (written,), phase, products=(products,), dtype=dtype)


@pytest.mark.parametrize(
    ("image", "products", "dtype", "found"),
    [
        (IMAGE, (1, 4096, 128, 512), "bf16", {3}),  # over features
        (IMAGE, (1, 8 * 128, 512, 64), "bf16", {3}),  # over positions
        (IMAGE, (1, 4096, 128, 512), "f32", set()),
        (IMAGE, (1, 8 * 32, 128 * 16, 512), "bf16", set()),  # rows of joined features
        ((8, 128, 512), (1, 4096, 128, 512), "bf16", set()),  # of a wave
    ],
)
def test_products_of_images_multiply_features_or_positions(image, products, dtype, found) -> None:
    ops = [
        op("convolution", Work.MATMUL, (0,), (1,)),
        op("native_layer_norm", Work.ELEMENTWISE, (1,), (2,)),
        _linear(products, dtype=dtype),
    ]
    made = _recording(ops, {1: image, 2: image, 3: (products[1], products[3])})
    assert products_of_images(made.ops, made.blocks) == found


def _network(approximate: bool, first: str = "convolution") -> Recording:
    """A convolution and two linear layers, with the gradients that read what is between these."""
    ops = [
        op(first, Work.MATMUL, (0,), (1,), products=((1, 4096, 27, 128),)),
        op("native_layer_norm", Work.ELEMENTWISE, (1,), (2,)),
        _linear((1, 4096, 128, 512)),
        op("gelu", Work.ELEMENTWISE, (3,), (4,), approximate=approximate),
        _linear((1, 4096, 512, 128), (4,), 5),
        _linear((1, 512, 4096, 128), (4, 9), 6, phase=BACK),  # the gradient of its weight
        op("gelu_backward", Work.ELEMENTWISE, (8, 3), (7,), BACK),
        _linear((1, 512, 4096, 128), (7, 2), 10, phase=BACK),
    ]
    hidden = (8, 16, 32, 512)
    shapes = {1: IMAGE, 2: (8, 16, 32, 128), 3: HIDDEN, 4: hidden, 5: (4096, 128), 7: hidden}
    made = _recording(ops, {**shapes, 6: (512, 128), 10: (512, 128)})
    for storage in (6, 10):
        made.blocks[storage].died = None
    return made


@pytest.mark.parametrize(("approximate", "beside"), [(False, {4}), (True, set())])
def test_what_an_error_function_makes_is_kept_beside_its_product(approximate, beside) -> None:
    made = _network(approximate)
    assert kept_beside(made.ops, made.blocks) == beside
    sizes = {life.storage: life for life in lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives}
    assert sizes[3].size_bytes == MIB  # rounded, and not its float32 sums
    assert (sizes.keys() & {4}) == beside
    if beside:
        assert sizes[4].end > 5  # the gradient of the second weight reads it


@pytest.mark.parametrize(
    ("approximate", "dtype", "kept"),
    [(False, "bf16", True), (True, "bf16", False), (False, "f32", False)],
)
def test_some_chips_keep_what_an_error_function_makes(approximate, dtype, kept) -> None:
    made = _network(approximate, first="mm")
    for one in made.ops:
        one.dtype = dtype
    found = lifetimes_of(made.ops, made.blocks, 0, Vmem(0), keeps_gelus=True)
    assert (4 in {life.storage for life in found.lives}) == kept


@pytest.mark.parametrize("moved", [(512, 8, 128), (8, 128, 512), None])
def test_of_tokens_it_is_computed_again(moved) -> None:
    tokens = (8, 512, 128)
    made = _network(approximate=False)
    made.blocks[2].shape = tokens
    made.blocks[4].shape = made.blocks[7].shape = (8, 512, 512)
    if moved:
        made.ops.insert(2, op("clone", Work.MOVE, (2,), (11,)))
        made.blocks[11] = replace(made.blocks[2], shape=moved)
    assert kept_beside(made.ops, made.blocks) == set()


def test_products_of_what_no_convolution_made_are_computed_from_again() -> None:
    made = _network(approximate=False, first="mm")
    assert kept_beside(made.ops, made.blocks) == set()
    assert 4 not in {life.storage for life in lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives}


@pytest.mark.parametrize(
    ("shape", "padding"), [((32, 48, 48, 64), 2), ((32, 48 * 48, 64), 1), ((32, 48, 48, 128), 1)]
)
def test_norms_over_the_pixels_of_maps_take_whole_tiles(shape, padding) -> None:
    channels_first = (shape[0], shape[-1], *shape[1:-1])
    ops = [
        op("convolution", Work.MATMUL, (0,), (1,)),
        op("silu", Work.ELEMENTWISE, (1,), (2,)),
    ]
    made = _recording(ops, {1: (*channels_first, 1)[:4], 2: shape})
    assert padded_sizes(made.ops, made.blocks).get(2, MIB) == padding * MIB


@pytest.mark.parametrize(("first", "copies"), [("mm", 4), ("convolution", 3)])
def test_values_of_an_image_are_not_copied_out_of_their_projection(first, copies) -> None:
    attention = op(
        *("attention", Work.ATTENTION, (3, 3, 3), (4,)),
        *(Phase.FORWARD, MIB),
        head_dims=(32, 32),
        scores=8.0 * 4 * 256 * 256,
        dtype="bf16",
    )
    gradient = op(
        *("attention", Work.ATTENTION, (3, 3, 3, 4), (5,), BACK),
        head_dims=(32, 32),
        gradient=True,
        dtype="bf16",
    )
    ops = [
        op(first, Work.MATMUL, (0,), (1,), products=((1, 2048, 27, 128),)),
        op("native_layer_norm", Work.ELEMENTWISE, (1,), (2,)),
        _linear((1, 2048, 128, 384)),
        attention,
        gradient,
    ]
    shapes = {1: (8, 128, 16, 16), 2: (8, 256, 128), 3: (2048, 384), 4: (8, 4, 256, 32)}
    made = _recording(ops, {**shapes, 5: (8, 4, 256, 32)})
    lives = attention_lives(made.ops, made.blocks, uses_of(made.ops, made.blocks, 0))
    assert sum(life.storage == 3 for life in lives) == copies


def _shared(readers: int) -> Recording:
    """A convolution, a ReLU, and so many convolutions of that."""
    ops = [
        op("convolution", Work.MATMUL, (0,), (1,)),
        op("relu", Work.ELEMENTWISE, (1,), (2,)),
        *(op("convolution", Work.MATMUL, (2,), (3 + i,)) for i in range(readers)),
    ]
    return _recording(ops, {1: IMAGE, 2: IMAGE})


@pytest.mark.parametrize(("readers", "written"), [(1, False), (2, True)])
def test_an_image_that_several_convolutions_read_is_written(readers, written) -> None:
    made = _shared(readers)
    lives = lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives
    assert (2 in {life.storage for life in lives}) == written


@pytest.mark.parametrize("approximate", [False, True])
def test_what_an_error_function_makes_of_a_convolution_is_moved_once(approximate) -> None:
    tokens = (8, 16 * 32, 128)
    ops = [
        op("convolution", Work.MATMUL, (0,), (1,), products=((128, 4096, 9, 1),)),
        op("gelu", Work.ELEMENTWISE, (1,), (2,), approximate=approximate),
        op("clone", Work.MOVE, (2,), (3,)),
        _linear((1, 4096, 128, 32), (3,), 4),
        _linear((1, 32, 4096, 128), (9, 3), 5, phase=BACK),
    ]
    made = _recording(ops, {1: IMAGE, 2: tokens, 3: tokens, 4: (4096, 32), 5: (32, 128)})
    made.blocks[5].died = None
    lives = lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives
    assert (3 in {life.storage for life in lives}) == (not approximate)


@pytest.mark.parametrize(
    ("reader", "shape", "kept"),
    [
        ("gelu", IMAGE, MIB),
        ("gelu", (8, 16 * 32, 128), 2 * MIB),  # tokens
        ("glu", (8, 64, 16, 32), 2 * MIB),  # halves of the features
    ],
)
def test_convolutions_that_are_read_otherwise_are_kept_as_sums(reader, shape, kept) -> None:
    ops = [
        op("convolution", Work.MATMUL, (0,), (1,), dtype="bf16"),
        op(reader, Work.ELEMENTWISE, (1,), (2,)),
        op("convolution", Work.MATMUL, (2,), (3,), dtype="bf16"),
    ]
    made = _recording(ops, {1: IMAGE, 2: shape})
    sizes = {one.storage: one for one in lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives}
    assert sizes[1].size_bytes == kept


@pytest.mark.parametrize(("made_by", "written"), [("upsample_bilinear2d", True), ("relu", False)])
def test_an_interpolated_image_is_written_as_it_is_joined_for_a_convolution(
    made_by, written
) -> None:
    products = ((1, 4096, 256, 128),)
    ops = [
        op("convolution", Work.MATMUL, (0,), (1,), products=products),
        op(made_by, Work.ELEMENTWISE, (1,), (2,)),
        op("cat", Work.MOVE, (2, 1), (3,)),
        op("_to_copy", Work.MOVE, (3,), (4,)),
        op("convolution", Work.MATMUL, (4, 9), (5,), products=products),
        op("convolution_backward", Work.MATMUL, (5, 4, 9), (6,), BACK, products=products),
    ]
    made = _recording(ops, dict.fromkeys((1, 2, 3, 4, 5), IMAGE))
    found = {one.storage for one in lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives}
    assert (4 in found) == written
    assert found.isdisjoint((2, 3))


def test_some_of_an_images_features_lie_as_the_image_does() -> None:
    made = _network(approximate=False)
    made.ops.insert(1, op("tanh", Work.ELEMENTWISE, (1,), (11,)))
    batch, _, *places = IMAGE
    for shape, found in (((batch, 3, *places), 3), ((batch, 3, places[0], 1), None)):
        made.blocks[11] = replace(made.blocks[1], shape=shape)
        image = images_of(made.ops, made.blocks).get(11)
        assert (image and image.features) == found


@pytest.mark.parametrize(
    ("shape", "padding"),
    [
        ((32, 160, 28, 28), 1.6),  # 256 lanes
        ((32, 256, 28, 28), 1),
        ((160, 32, 28, 28), 1),  # of batches that are joined
    ],
)
def test_images_that_are_joined_along_features_take_whole_tiles(shape, padding) -> None:
    ops = [
        op("convolution", Work.MATMUL, (0,), (1,)),
        op("cat", Work.MOVE, (1, 0), (2,)),
        op("native_batch_norm", Work.ELEMENTWISE, (2,), (3,)),
    ]
    made = _recording(ops, {1: (32, 128, 28, 28), 2: shape, 3: shape})
    sizes = padded_sizes(made.ops, made.blocks)
    assert {sizes.get(storage, MIB) for storage in (2, 3)} == {round(padding * MIB)}
