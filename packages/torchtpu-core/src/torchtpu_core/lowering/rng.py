# SPDX-License-Identifier: Apache-2.0
"""Random bits for lowerings: counter-based, from the generator's (seed, offset).

The generator's state is an operand of the program, so a program with dropout is
compiled once. The 128-bit state is mixed to a 64-bit stream number; Philox-2x32 then
gives bits that depend on the stream and the element's index alone, not on fusion or
on the eager mode. It is written here as elementwise arithmetic, which XLA fuses with
its consumer: ``lax.rng_bit_generator`` draws 32-bit Philox words a hundred times
slower on XLA:CPU.

Reference: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
The mixer is the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import numpy as np
from jax import lax


def _mix(z: jax.Array) -> jax.Array:
    """SplitMix64's finaliser: a bijection on uint64 in which every input bit matters."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


_MASK = np.uint64(0xFFFFFFFF)
_MULTIPLIER = np.uint64(0xD256D193)
_WEYL = np.uint64(0x9E3779B9)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = 10
_WORD = np.dtype(np.uint32)


def philox(index: jax.Array, stream: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Philox-2x32-10: two words of 32 bits per element of `index`, held in uint64 arrays.

    Args:
        index: uint64 element numbers; the low half is the counter's first word.
        stream: uint64 scalar; the low half is the key, the high half the counter's
            second word.
    """
    half = np.uint64(32)
    left, right = index & _MASK, (stream >> half) ^ (index >> half)
    key = stream & _MASK
    for _ in range(_ROUNDS):
        product = left * _MULTIPLIER
        left, right = (product >> half) ^ key ^ right, product & _MASK
        key = (key + _WEYL) & _MASK
    return left, right


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

    def bits(self, shape: tuple[int, ...], dtype: np.dtype = _WORD) -> jax.Array:
        """Uniform random bits, `shape`, of an unsigned integer dtype (8 to 64 bits)."""
        self.draws += 1
        return self.bits_at(lax.reshape(lax.iota(np.uint64, math.prod(shape)), tuple(shape)), dtype)

    def bits_at(self, index: jax.Array, dtype: np.dtype = _WORD) -> jax.Array:
        """The bits of the elements numbered `index`, uint64, for the draw that is under way."""
        key = _mix(self.key() + np.uint64(self.draws * int(_GOLDEN) % 2**64))
        left, right = philox(index, key)
        width = 8 * np.dtype(dtype).itemsize
        if width == 64:
            return (left << np.uint64(32)) | right
        return (left >> np.uint64(32 - width)).astype(dtype)

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
