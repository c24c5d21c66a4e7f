# SPDX-License-Identifier: Apache-2.0
"""Attention over ranks equals that of one process: results and gradients."""

from __future__ import annotations

import pytest
import torch

# float32 sums in another order
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def check(outcomes) -> None:
    for found, wanted in outcomes:
        for got, expected in zip(found, wanted, strict=True):
            torch.testing.assert_close(got, expected, **CLOSE)


@pytest.mark.parametrize("causal", [True, False])
def test_attention_along_a_sharded_sequence_equals_one_process(pair, causal):
    check(pair("attention.along_the_sequence", causal))


@pytest.mark.parametrize("dim", [0, 1, None])
def test_attention_of_sharded_batch_or_heads_equals_one_process(pair, dim):
    check(pair("attention.by_placement", dim))


@pytest.mark.parametrize("key_heads", [1, 2])
def test_heads_that_share_keys_are_sharded_in_whole_groups(pair, key_heads: int) -> None:
    check(pair("attention.by_placement", 1, key_heads))


@pytest.mark.parametrize("names", ["q", "kv"])
def test_operands_that_want_no_gradient_get_none(pair, names: str) -> None:
    check(pair("attention.along_the_sequence", True, names))
    check(pair("attention.by_placement", 1, 4, names))
