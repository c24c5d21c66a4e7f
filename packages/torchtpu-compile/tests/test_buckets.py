# SPDX-License-Identifier: Apache-2.0
"""Which padded sizes are chosen."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from torchtpu_compile.buckets import BucketPolicy, coarse, fine


@given(st.integers(1, 10**6))
def test_buckets_hold_the_size_and_the_fine_one_wastes_at_most_an_eighth(size: int) -> None:
    assert coarse(size) >= size
    assert size <= fine(size) <= max(size * 1.125, size)


def test_sweep_over_lengths_and_batches_needs_few_programs() -> None:
    sizes = [(batch, length) for batch in range(1, 17) for length in range(1, 129)]
    random.Random(0).shuffle(sizes)
    policy = BucketPolicy()
    found = {policy.padded(size, (None, None)) for size in sizes}
    assert len(found) <= 10


def test_growing_length_needs_few_programs() -> None:
    policy = BucketPolicy()
    assert len({policy.padded((n,), (None,)) for n in range(2, 1025)}) <= 8


def test_size_that_repeats_earns_a_tight_bucket_within_the_budget() -> None:
    policy = BucketPolicy(limit=3)
    found = {}
    for size in (300, 700, 1100, 2100):
        for _ in range(20):
            found[size] = policy.padded((size,), (None,))[0]
    assert found[300] <= 300 * 1.125
    assert len(set(policy.chosen.values())) <= 4


def test_sizes_that_never_come_again_are_forgotten() -> None:
    policy = BucketPolicy()
    for n in range(2, 20_000):
        policy.padded((n,), (None,))
        assert len(policy.counts) <= 5000 and len(policy.chosen) <= 5000
    assert len(policy.programs) <= 12


def test_declared_maximum_bounds_the_bucket() -> None:
    assert BucketPolicy().padded((70,), (100,)) == (100,)


@pytest.mark.parametrize(("size", "expected"), [(1, 8), (8, 8), (9, 16)])
def test_bucket_size_rounds_to_a_multiple(size: int, expected: int) -> None:
    assert BucketPolicy(multiple=8).padded((size,), (None,)) == (expected,)


@given(st.lists(st.integers(1, 3000), min_size=2, max_size=4).map(tuple))
@example((961, 961, 961))  # the coarse bucket is the fine one
def test_padding_of_large_values_is_limited_as_a_whole(sizes: tuple[int, ...]) -> None:
    policy = BucketPolicy(bytes_at=lambda at: 4 * math.prod(at))
    upper = (None,) * len(sizes)
    for most in (4.0, 1.125):
        padded = policy.padded(sizes, upper)
        assert all(n >= true for n, true in zip(padded, sizes, strict=True))
        if 4 * math.prod(padded) > 2**29:
            assert math.prod(padded) <= most * math.prod(sizes)
        for _ in range(8):
            policy.padded(sizes, upper)


def test_numbers_that_are_no_sizes_keep_their_bucket() -> None:
    policy = BucketPolicy(bytes_at=lambda at: at[0] ** 2)
    assert policy.padded((33_000, 3), (None, None)) == (65_536, 16)
