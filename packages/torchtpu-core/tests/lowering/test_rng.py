# SPDX-License-Identifier: Apache-2.0
"""The bit generator is Threefry-2x32-13 and its streams are independent."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torchtpu_core.errors import LoweringTableError
from torchtpu_core.lowering import random
from torchtpu_core.lowering.interpreter import run_overload
from torchtpu_core.lowering.rng import Rng, threefry

#: Known answers of the authors' Random123 library: counter, key, output.
KNOWN = [
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x9D1C5EC6, 0x8BD50731)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0xFD36D048, 0x2D17272C)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xBA3E4725, 0xF27D669E)),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_threefry_gives_the_published_known_answers(
    counter: tuple[int, int], key: tuple[int, int], expected: tuple[int, int]
) -> None:
    first, second = (tuple(jnp.array([word], np.uint32) for word in one) for one in (counter, key))
    assert tuple(int(word[0]) for word in threefry(first, second)) == expected


def rng(seed: int, offset: int) -> Rng:
    return Rng(jnp.uint64(seed), jnp.uint64(offset))


def test_bits_differ_by_seed_offset_and_draw() -> None:
    with jax.enable_x64(True):
        one = rng(0, 0)
        drawn = [one.bits((4,)), one.bits((4,)), rng(1, 0).bits((4,)), rng(0, 4).bits((4,))]
        words = {int(w) for d in drawn for w in np.asarray(d)}
    assert len(words) == 16


def test_bits_of_an_element_do_not_depend_on_the_shape() -> None:
    with jax.enable_x64(True):
        flat, square = rng(5, 8).bits((6,)), rng(5, 8).bits((2, 3))
        longer = rng(5, 8).bits((9,))
    assert flat.tolist() == square.reshape(-1).tolist() == longer[:6].tolist()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_every_bit_is_set_half_of_the_time(dtype: type[np.unsignedinteger]) -> None:
    count, width = 4096, 8 * np.dtype(dtype).itemsize
    with jax.enable_x64(True):
        words = np.asarray(rng(3, 0).bits((count,), np.dtype(dtype))).astype(np.uint64)
    share = [(words >> np.uint64(bit) & np.uint64(1)).mean() for bit in range(width)]
    assert np.abs(np.array(share) - 0.5).max() < 5 * 0.5 / np.sqrt(count)


def test_bits_of_elements_beyond_32_bits_differ_from_those_of_the_first_ones() -> None:
    with jax.enable_x64(True):
        index = jnp.array([5, 5 + 2**32, 5 + 2**33], np.uint64)
        words, word = rng(7, 0).bits_at(index), rng(7, 0).bits_at(jnp.array([5], np.uint32))
    assert len(set(words.tolist())) == 3
    assert word[0] == words[0]


@pytest.mark.parametrize("bits", [np.uint8, np.uint32])
def test_elements_and_streams_next_to_each_other_are_independent(bits: type) -> None:
    """Correlations of neighbours, of streams that differ by one offset, and of their masks."""
    count = 1 << 16
    with jax.enable_x64(True):
        drawn = [np.asarray(rng(1, 4 * k).bits((count,), np.dtype(bits))) for k in range(8)]
    centred = [(d - d.mean(dtype=np.float64)) / d.std(dtype=np.float64) for d in drawn]
    most = 5 / np.sqrt(count)
    for lag in (1, 2, 3, 128, 1024):
        assert all(abs((d[lag:] * d[:-lag]).mean()) < most for d in centred)
    table = np.abs(np.corrcoef(centred)) - np.eye(len(centred))
    assert table.max() < most
    kept = np.stack([d > np.quantile(d, 0.9) for d in centred]).astype(np.float64)
    assert (np.abs(np.corrcoef(kept)) - np.eye(len(kept))).max() < most


@pytest.mark.parametrize("size", [2**31, 2**32 + 3])
@pytest.mark.parametrize("name", ["random", "bernoulli.p", "uniform", "randperm"])
def test_draw_of_more_than_2_31_elements_is_lowered(name: str, size: int) -> None:
    row = next(r for r in random.TABLE if r.overload == f"aten::{name}")
    target = jax.ShapeDtypeStruct((size,), np.uint8 if name == "random" else np.float16)

    def draw(like: jax.Array, stream: jax.Array) -> jax.Array:
        drawn = Rng(stream, stream)
        return (
            row.function(size, rng=drawn) if name == "randperm" else row.function(like, rng=drawn)
        )

    with jax.enable_x64(True):
        stream = jax.ShapeDtypeStruct((), np.uint64)
        made = jax.eval_shape(draw, target, stream)
        assert made.shape == (size,)
        if name == "random":
            text = jax.jit(draw).lower(target, stream).as_text()
            assert f"tensor<{size}xui64>" in text  # elements are counted in 64 bits


def test_random_op_inside_a_row_that_is_not_random_is_refused() -> None:
    tables = {row.overload: row for row in random.TABLE}
    with pytest.raises(LoweringTableError, match="random=True"):
        run_overload(torch.ops.aten.rand_like.default, [jnp.zeros(3)], {}, tables)
