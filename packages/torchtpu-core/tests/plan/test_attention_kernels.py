# SPDX-License-Identifier: Apache-2.0
"""Which attention the flash kernels compute, and what it moves through HBM."""

from __future__ import annotations

import jax
import pytest
import torch
from torchtpu_core.lowering import flash_attention
from torchtpu_core.plan.attention_kernels import attention_of
from torchtpu_core.xla_tpu import lowering

FORWARD = "_scaled_dot_product_fused_attention_overrideable"


def _qkv(length=512, width=64, keys=None, heads=4, dtype=torch.bfloat16):
    query = torch.empty(2, 4, length, width, dtype=dtype)
    key = torch.empty(2, heads, keys or length, width, dtype=dtype)
    return query, key, torch.empty_like(key)


def _work(tensors, *rest):
    work = attention_of(FORWARD, (*tensors, *rest))
    assert work is not None
    return work


def _gradient(tensors, *rest):
    work = attention_of(f"{FORWARD}_backward", (tensors[0], *tensors, *rest))
    assert work is not None
    return work


@pytest.mark.parametrize(
    ("tensors", "bias", "dropout"),
    [
        (_qkv(), None, 0.0),
        (_qkv(keys=384), None, 0.0),
        *((_qkv(length), None, 0.0) for length in (200, 256, 384, 500, 577)),
        (_qkv(128, keys=1500), None, 0.0),
        (_qkv(4096, keys=77), None, 0.0),
        (_qkv(dtype=torch.float16), None, 0.0),
        (_qkv(), torch.empty(1, 1, 512, 512), 0.0),
        (_qkv(), None, 0.1),
    ],
)
def test_flash_kernels_are_priced_where_the_lowering_takes_them(
    monkeypatch, tensors, bias, dropout
) -> None:
    monkeypatch.setattr(lowering, "target", lambda: object())
    names = {torch.bfloat16: "bfloat16", torch.float16: "float16"}
    arrays = [jax.ShapeDtypeStruct(tuple(t.shape), names[t.dtype]) for t in tensors]
    taken = flash_attention.applies(*arrays, bias, dropout)
    assert _work(tensors, bias, dropout).flash is taken
    saved = ([True] * 4, *tensors[:2], None, None, 1, 1)
    assert _gradient(tensors, bias, *saved, dropout, False).flash is taken


def test_flash_kernels_move_padded_heads_and_statistics_in_whole_vectors() -> None:
    rows = 2 * 4 * 512
    padded, statistic = rows * 128 * 2, rows * 128 * 4
    work = _work(_qkv())
    assert work.hbm_bytes == 4 * padded + 4 * statistic
    assert _work(_qkv(width=128)).hbm_bytes == work.hbm_bytes
    gradient = _gradient(_qkv(), None)
    # Keys' kernel, queries' kernel, the sum of result and gradient, statistics spread over lanes.
    assert gradient.hbm_bytes == (6 + 5 + 2) * padded + (3 + 3 + 2) * statistic


def test_lengths_are_filled_up_to_whole_blocks() -> None:
    some, whole = _work(_qkv(500)), _work(_qkv(512))
    assert (some.scores, some.hbm_bytes) == (whole.scores, whole.hbm_bytes)


def test_kernel_of_gradients_that_nobody_wants_is_not_priced() -> None:
    def work(*wanted):
        return _gradient(_qkv(), None, [*wanted, False])

    both, queries, keys = work(True, True, True), work(True, False, False), work(False, True, True)
    assert queries.scores + keys.scores == pytest.approx(both.scores)
    assert queries.scores / keys.scores == pytest.approx(3 / 4)
    once = 2 * 2 * 4 * 512 * 128 * (2 + 4)  # operands of both, and their statistics
    assert queries.hbm_bytes + keys.hbm_bytes - both.hbm_bytes == once


def test_kernels_of_a_gradient_compute_scores_and_their_gradients_twice() -> None:
    # One kernel for queries (scores, their gradients, the result), one for keys and values (with
    # two results): seven products for the four that differ from the forward pass's two.
    forward, gradient = _work(_qkv()), _gradient(_qkv(), None)
    assert gradient.scores * 5 == pytest.approx(7 * forward.scores)
    assert gradient.scores * 5 * (1 - gradient.again) == pytest.approx(2 * 2 * forward.scores)
    written = _gradient(_qkv(200), None)
    assert written.scores * 5 * (1 - written.again) == pytest.approx(4 * _work(_qkv(200)).scores)
    assert forward.again == 0


def test_keys_are_read_for_each_block_of_queries() -> None:
    once, twice = (_work(_qkv(length, keys=512)).hbm_bytes for length in (512, 1024))
    assert twice == 2 * once
    causal, full = (_work(_qkv(1024), None, 0.0, c).hbm_bytes for c in (True, False))
    assert causal < full


def test_scores_of_all_pairs_are_in_hbm_without_the_kernels() -> None:
    query, key, value = _qkv(200)
    work = _work((query, key, value), None, 0.0, True)
    assert work.scores == 2 * 4 * 200 * 200
    assert work.hbm_bytes > work.scores * 4
    dropped = _work(_qkv(), None, 0.1)
    assert _work(_qkv()).hbm_bytes < dropped.hbm_bytes
    assert dropped.drawn == dropped.scores
    assert work.drawn == 0
