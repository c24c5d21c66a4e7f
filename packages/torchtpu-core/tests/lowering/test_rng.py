# SPDX-License-Identifier: Apache-2.0
"""The bit generator is Philox-2x32-10 and its streams are independent."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from torchtpu_core.lowering.rng import Rng, philox

#: Known answers of the authors' Random123 library: counter, key, output.
KNOWN = [
    ((0x00000000, 0x00000000), 0x00000000, (0xFF1DAE59, 0x6CD10DF2)),
    ((0xFFFFFFFF, 0xFFFFFFFF), 0xFFFFFFFF, (0x2C3F628B, 0xAB4FD7AD)),
    ((0x243F6A88, 0x85A308D3), 0x13198A2E, (0xDD7CE038, 0xF62A4C12)),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_gives_the_published_known_answers(
    counter: tuple[int, int], key: int, expected: tuple[int, int]
) -> None:
    with jax.enable_x64(True):
        stream = jnp.uint64(key | counter[1] << 32)
        words = philox(jnp.full((1,), counter[0], np.uint64), stream)
    assert tuple(int(w[0]) for w in words) == expected


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
