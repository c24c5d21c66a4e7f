# SPDX-License-Identifier: Apache-2.0
"""What operators move: rows that are looked up, not the tables they are in."""

from __future__ import annotations

import pytest
import torch
from torchtpu_core.plan.op_work import drawn_of, is_compared, products_of, touched_bytes
from torchtpu_core.plan.recorder import _is_composite

ROWS, WIDTH, LOOKED_UP = 1000, 16, 8
TABLE = torch.empty(ROWS, WIDTH)
PLACES = torch.zeros(LOOKED_UP, dtype=torch.int64)
FOUND = torch.empty(LOOKED_UP, WIDTH)
MASK = torch.empty(ROWS, WIDTH, dtype=torch.bool)
TWO_BAGS = torch.empty(2, WIDTH)


def _touched(name: str, operands: list[torch.Tensor], results: list[torch.Tensor]):
    read, written = ([t.nbytes for t in tensors] for tensors in (operands, results))
    return touched_bytes(name, operands, read, written)


@pytest.mark.parametrize(
    ("name", "operands", "results", "read", "written"),
    [
        ("embedding", [TABLE, PLACES], [FOUND], 512, 512),
        ("index_select", [TABLE, PLACES], [FOUND], 512, 512),
        # Each of the eight rows is read, though the results are two sums.
        ("_embedding_bag", [TABLE, PLACES, PLACES[:2]], [TWO_BAGS], 512, 128),
        ("index_add_", [TABLE, PLACES, FOUND], [TABLE], 512, 512),
        ("index_put_", [TABLE, MASK, FOUND], [TABLE], 64000, 64000),
        ("index_add", [TABLE, PLACES, FOUND], [TABLE], 64000, 64000),
        ("mul", [TABLE, FOUND], [TABLE], 64000, 64000),
    ],
)
def test_rows_looked_up_or_changed_in_place_are_moved_and_not_their_table(
    name, operands, results, read, written
) -> None:
    reads, writes = _touched(name, operands, results)
    assert (reads[0], sum(writes)) == (read, written)
    assert list(reads[1:]) == [t.nbytes for t in operands[1:]]


@pytest.mark.parametrize(
    ("name", "count"),
    [("native_dropout", 128), ("normal_", 128), ("native_dropout_backward", 128), ("mul", 0)],
)
def test_random_numbers_are_drawn_for_each_element(name, count) -> None:
    assert drawn_of(name, [FOUND, MASK]) == count


def test_mask_of_attention_that_is_written_out_is_drawn_once() -> None:
    probabilities = [torch.empty(2, 3, 4, 4)]
    drawn = [
        drawn_of(name, probabilities) for name in ("native_dropout", "native_dropout_backward")
    ]
    assert drawn == [96, 0]


@pytest.mark.parametrize(
    ("name", "sizes", "dim", "compared"),
    [
        ("gather", (8, 1), 1, True),
        ("scatter_add_", (1, 5), 0, True),
        ("gather", (8, 2), 1, False),
        ("gather", (4, 1), 1, False),
        ("index_select", (8, 1), 1, False),
    ],
)
def test_one_index_for_each_row_is_elementwise_work(name, sizes, dim, compared) -> None:
    index = torch.zeros(sizes, dtype=torch.int64)
    assert is_compared(name, (torch.empty(8, 5), dim, index)) == compared


LOOK_UP = """
import torch

table = torch.nn.Embedding(ROWS, 256, device="tpu")
with torch.no_grad():
    table(torch.zeros(4096, dtype=torch.int64, device="tpu"))
"""


def test_look_up_in_a_larger_table_costs_the_same(planned) -> None:
    small, large = (planned(LOOK_UP.replace("ROWS", rows)) for rows in ("65536", "1048576"))
    times = [plan["seconds_by_work"]["forward: move"] for plan in (small, large)]
    assert times[0] == pytest.approx(times[1], rel=1e-6)


def test_recurrent_layer_has_a_product_of_all_inputs_and_one_of_each_state() -> None:
    given, state = torch.empty(7, 4, 16), torch.empty(4, 32)
    weights = torch.empty(96, 16), torch.empty(96, 32)
    rest = (None, None, None, "gru", False, True)
    forward = products_of("recurrent_layer", (given, None, state, None, *weights, *rest), None)
    assert forward == ((1, 28, 16, 96), (7, 4, 32, 96))
    saved = (given, given, given, "gru", False)
    arguments = (*(None,) * 3, given, None, state, None, *weights, None, *saved)
    backward = products_of("recurrent_layer_backward", arguments, None)
    work = [sum(b * m * k * n for b, m, k, n in rows) for rows in (forward, backward)]
    assert work[1] == 2 * work[0]


LIKE = """
import torch

with torch.no_grad():
    x = torch.ones(4096, 4096, device="tpu")
    for _ in range(2):
        FILL
"""


def test_tensor_made_like_another_reads_none_of_it(planned) -> None:
    like, alone = (
        planned(LIKE.replace("FILL", fill))["seconds_by_work"]["forward: elementwise"]
        for fill in ("torch.zeros_like(x)", 'torch.zeros(4096, 4096, device="tpu")')
    )
    assert like == pytest.approx(alone)


def test_fourier_transforms_are_products_with_roots_of_unity() -> None:
    image = torch.empty(2, 64, 32)
    half = torch.empty(2, 64, 17, dtype=torch.complex64)
    rows = (3, 2 * 17, 64, 64), (2, 2 * 64 * 17 // 32, 32, 32)
    assert products_of("_fft_r2c", (image, [1, 2], 0, True), half) == rows
    assert products_of("_fft_c2r", (half, [1, 2], 2, 32), image) == rows
    long = torch.empty(4, 4096, dtype=torch.complex64)
    factors = (3, 4 * 32, 128, 128), (3, 4 * 128, 32, 32)
    assert products_of("_fft_c2c", (long, [1], 0, True), long) == factors


@pytest.mark.parametrize(("name", "composite"), [("upsample_nearest2d", False), ("linear", True)])
def test_operator_that_python_alone_can_take_apart_is_recorded_whole(name, composite) -> None:
    assert _is_composite(getattr(torch.ops.aten, name).default) == composite


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mm", [(8, 4), (4, 6)]),
        ("_int_mm", [(8, 4), (4, 6)]),
        ("_addmm_activation", [(6,), (8, 4), (4, 6)]),
        ("_weight_int8pack_mm", [(8, 4), (6, 4), (6,)]),
    ],
)
def test_every_kind_of_product_has_rows_depth_and_columns(name, shapes) -> None:
    found = products_of(name, [torch.empty(shape) for shape in shapes], torch.empty(8, 6))
    assert found == ((1, 8, 4, 6),)


def test_products_with_vectors_and_sums_of_batches_are_products() -> None:
    matrix, vector, batch = torch.empty(8, 4), torch.empty(4), torch.empty(3, 8, 4)
    assert products_of("mv", [matrix, vector], None) == ((1, 8, 4, 1),)
    assert products_of("addmv", [torch.empty(8), matrix, vector], None) == ((1, 8, 4, 1),)
    summed = products_of("addbmm", [torch.empty(8, 6), batch, torch.empty(3, 4, 6)], None)
    assert summed == ((3, 8, 4, 6),)


def test_transposed_convolution_is_the_gradient_of_one_whose_output_it_reads() -> None:
    small, large = torch.empty(2, 8, 5, 5), torch.empty(2, 4, 10, 10)
    weight, stride, padding = torch.empty(8, 4, 2, 2), [2, 2], [0, 0]
    rest = (None, stride, padding, [1, 1], True, [0, 0], 1)
    places, taps = 2 * 5 * 5, 4 * 2 * 2
    # Each place of the large image is reached by one tap of every feature.
    assert products_of("convolution", (small, weight, *rest), large) == ((1, 200, 8, 4),)
    found = products_of(
        "convolution_backward", (large, small, weight, *rest, [True, True, False]), small
    )
    assert found == ((1, places, taps, 8), (1, 8, places, taps))
