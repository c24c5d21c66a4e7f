# SPDX-License-Identifier: Apache-2.0
"""Random bits for lowerings: counter-based, from the generator's (seed, offset).

The generator's state is an operand of the program, so a program with dropout is
compiled once. The 128-bit state is mixed to a 64-bit stream number; Threefry-2x32 then
gives bits that depend on the stream and the element's index alone, not on fusion or
on the eager mode. It is written here as elementwise arithmetic, which XLA fuses with
its consumer, of 32-bit words without products: a TPU's vector unit has no product of two
words with 64 bits (`docs/decisions/0003-random-bits.md`).

Reference: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, whose
variant of 13 rounds is used, the fewest that pass BigCrush.
The mixer is the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def _mix(z: jax.Array) -> jax.Array:
    """SplitMix64's finaliser: a bijection on uint64 in which every input bit matters."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_WORD = np.dtype(np.uint32)
_ROUNDS = 13
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
#: Rounds after which words of the key are added.
_BETWEEN_KEYS = 4
_PARITY = np.uint32(0x1BD11BDA)


def threefry(
    counter: tuple[jax.Array, jax.Array], key: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Threefry-2x32-13: two words of 32 bits.

    Args:
        counter: two words, uint32, of one shape: what is mixed.
        key: two words, uint32 scalars.
    """
    words = (*key, key[0] ^ key[1] ^ _PARITY)
    left, right = counter[0] + words[0], counter[1] + words[1]
    for done in range(1, _ROUNDS + 1):
        left = left + right
        right = left ^ _rotated(right, _ROTATIONS[(done - 1) % len(_ROTATIONS)])
        added, rest = divmod(done, _BETWEEN_KEYS)
        if rest == 0:
            left = left + words[added % 3]
            right = right + (words[(added + 1) % 3] + np.uint32(added))
    return left, right


def _rotated(word: jax.Array, bits: int) -> jax.Array:
    return (word << np.uint32(bits)) | (word >> np.uint32(32 - bits))


def _halves(word: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The low and the high half of 64 bits; of 32, no high half."""
    if word.dtype == _WORD:
        return word, jnp.zeros((), _WORD)
    return word.astype(_WORD), (word >> _HALF).astype(_WORD)


def index_dtype(count: int) -> np.dtype:
    """The dtype that numbers `count` elements: 32 bits where they suffice."""
    return _WORD if count <= 2**32 else np.dtype(np.uint64)


@dataclass(slots=True)
class Rng:
    """One op's stream of random bits.

    Attributes:
        seed: uint64 scalar, the generator's seed.
        offset: uint64 scalar, the generator's offset for this op.
        draws: how many times bits were drawn; each draw has its own key.
    """

    seed: jax.Array
    offset: jax.Array
    draws: int = 0

    def key(self) -> jax.Array:
        """The op's key, a uint64 scalar that stands for seed and offset."""
        return _mix(self.seed + _GOLDEN) ^ _mix(self.offset * np.uint64(2) + np.uint64(1) + _GOLDEN)

    def round(self, number: jax.Array) -> Rng:
        """The stream of one round of a loop, for what the op has drawn up to here.

        Args:
            number: uint64 scalar, the round's.
        """
        own = copy.copy(self)
        own.seed = _mix(_mix(self.key() + np.uint64(self.draws)) + number)
        own.offset, own.draws = jnp.uint64(0), 0
        return own

    def bits(self, shape: tuple[int, ...], dtype: np.dtype = _WORD) -> jax.Array:
        """Uniform random bits, `shape`, of an unsigned integer dtype (8 to 64 bits)."""
        self.draws += 1
        count = math.prod(shape)
        index = lax.iota(index_dtype(count), count)
        return self.bits_at(lax.reshape(index, tuple(shape)), dtype)

    def bits_at(self, index: jax.Array, dtype: np.dtype = _WORD) -> jax.Array:
        """The bits of the elements numbered `index` for the draw that is under way.

        Args:
            index: uint32 or uint64; the bits of a number are the same in both.
            dtype: unsigned integer of 8 to 64 bits.
        """
        key = _mix(self.key() + np.uint64(self.draws * int(_GOLDEN) % 2**64))
        left, right = threefry(_halves(index), _halves(key))
        width = 8 * np.dtype(dtype).itemsize
        if width == 64:
            return (left.astype(np.uint64) << _HALF) | right.astype(np.uint64)
        return (left >> np.uint32(32 - width)).astype(dtype)

    def uniform(self, shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
        """Uniform numbers in [0, 1), `shape`, float32 or float64, full mantissa resolution."""
        if np.dtype(dtype) == np.float64:
            return (self.bits(shape, np.dtype(np.uint64)) >> np.uint64(11)).astype(
                np.float64
            ) * np.float64(2.0**-53)
        return (self.bits(shape) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)

    def normal(self, shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
        """Standard normal numbers, `shape`, float32 or float64, by the inverse error function."""
        dtype = np.dtype(dtype)
        # 2u - 1 + half a step is exact and strictly inside (-1, 1); u + half a step
        # would round to 1, whose inverse is infinite, once in 2^24 draws.
        half_step = dtype.type(2.0**-53 if dtype == np.float64 else 2.0**-24)
        centred = dtype.type(2.0) * self.uniform(shape, dtype) - dtype.type(1.0) + half_step
        return dtype.type(np.sqrt(2.0)) * lax.erf_inv(centred)
