# SPDX-License-Identifier: Apache-2.0
"""Flex attention, compiled, against attention written out on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torchtpu_compile import bounded_program

Mod = Callable[..., Tensor]


def written_out(q: Tensor, k: Tensor, v: Tensor, mod: Mod | None, mask: Mod | None) -> Tensor:
    """Attention with the scores changed by `mod` and hidden where `mask` is false."""
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    h = torch.arange(q.shape[1])[:, None, None]
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None]
    if mod is not None:
        scores = mod(scores, None, h, i, j)
    if mask is not None:
        scores = scores.masked_fill(~mask(None, h, i, j), -math.inf)
    return scores.softmax(-1) @ v


def check(
    function: Any, reference: Any, *operands: Tensor, backend: str = "tpu", options: Any = None
) -> None:
    """Values and gradients of the compiled function are those of the reference."""
    on_cpu = [x.clone().requires_grad_() for x in operands]
    on_tpu = [x.to("tpu").requires_grad_() for x in operands]
    expected = reference(*on_cpu)
    actual = torch.compile(function, backend=backend, fullgraph=True, options=options)(*on_tpu)
    torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    expected.square().sum().backward()
    actual.square().sum().backward()
    for a, e in zip(on_tpu, on_cpu, strict=True):
        torch.testing.assert_close(a.grad.cpu(), e.grad, rtol=1e-3, atol=1e-4)


def operands(length: int = 16, kv_heads: int = 2) -> tuple[Tensor, ...]:
    heads = (2, kv_heads, kv_heads)
    return tuple(torch.randn(1, h, length, 4) for h in heads)


@pytest.mark.parametrize("backend", ["tpu", "inductor"])
def test_captured_bias_has_a_gradient(backend: str) -> None:
    def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h, i - j + 15])

    def reference(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return written_out(q, k, v, lambda s, b, h, i, j: s + bias[h, i - j + 15], None)

    check(biased, reference, *operands(), torch.randn(2, 32), backend=backend)


def test_block_mask_and_grouped_heads_hide_what_they_should() -> None:
    def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
        return i >= j

    def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = create_block_mask(causal, None, None, 16, 16, device=q.device)
        return flex_attention(q, k, v, block_mask=mask, enable_gqa=True)

    def reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return written_out(q, k, v, None, causal)

    check(masked, reference, *operands(kv_heads=1))


def test_autocast_casts_the_operands() -> None:
    def cast(*operands: Tensor) -> Tensor:
        with torch.autocast("tpu", dtype=torch.bfloat16):
            return flex_attention(*operands)

    found = torch.compile(cast, backend="tpu", fullgraph=True)(*(x.to("tpu") for x in operands()))
    assert found.dtype == torch.bfloat16


def test_one_call_is_one_program() -> None:
    compiled = torch.compile(flex_attention, backend="tpu", fullgraph=True)
    q, k, v = (x.to("tpu") for x in operands())
    compiled(q, k, v)
    torch.tpu.synchronize()
    before = torch.tpu.counters()
    compiled(q, k, v)
    torch.tpu.synchronize()
    after = torch.tpu.counters()
    assert after["runs"] - before["runs"] == 1
    assert after["fallbacks"] == before["fallbacks"]


def test_lengths_share_programs() -> None:
    def shifted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + 0.1 * (i - j))

    compiled = torch.compile(shifted, backend="tpu", dynamic=True, fullgraph=True)
    torch.tpu.synchronize()
    before = torch.tpu.counters()["programs"]
    for length in (20, 33, 47):
        q, k, v = operands(length)
        expected = written_out(q, k, v, lambda s, b, h, i, j: s + 0.1 * (i - j), None)
        actual = compiled(q.to("tpu"), k.to("tpu"), v.to("tpu"))
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)
    assert torch.tpu.counters()["programs"] - before <= 2


def test_captured_tensor_that_does_not_learn_needs_no_gradient() -> None:
    slopes = torch.tensor([0.5, 0.25])

    def sloped(device: str) -> Mod:
        own = slopes.to(device)
        return lambda s, b, h, i, j: s - own[h] * (i - j).abs()

    mod = sloped("tpu")
    check(
        lambda q, k, v: flex_attention(q, k, v, score_mod=mod),
        lambda q, k, v: written_out(q, k, v, sloped("cpu"), None),
        *operands(),
    )


@pytest.mark.parametrize("backend", ["tpu", "inductor"])
def test_masks_of_blocks_made_in_the_graph_share_programs(backend: str) -> None:
    """The number of blocks of 128 is 1 for every length here, which guards say."""

    def function(q: Tensor, k: Tensor, v: Tensor, valid: Tensor) -> Tensor:
        n = q.shape[2]
        mask = create_block_mask(
            lambda b, h, i, j: j < valid[b], 1, None, n, n, device=str(q.device)
        )
        return flex_attention(q, k, v, block_mask=mask)

    compiled = torch.compile(function, backend=backend, fullgraph=True)
    bounded_program.reasons.clear()
    for length in (20, 47):
        on_cpu = [x.requires_grad_() for x in operands(length)]
        on_tpu = [x.detach().to("tpu").requires_grad_() for x in on_cpu]
        for x in on_tpu:
            torch._dynamo.mark_dynamic(x, 2)
        expected = written_out(*on_cpu, None, lambda b, h, i, j, n=length - 2: j < n)
        actual = compiled(*on_tpu, torch.tensor([length - 2], device="tpu"))
        torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
        expected.square().sum().backward()
        actual.square().sum().backward()
        for a, e in zip(on_tpu, on_cpu, strict=True):
            torch.testing.assert_close(a.grad.cpu(), e.grad, rtol=1e-3, atol=1e-4)
    assert not bounded_program.reasons


def test_compiled_masks_of_blocks_share_programs() -> None:
    """The length of a block is a symbol too, by which the number of blocks is divided."""

    def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
        return i >= j

    compiled = torch.compile(create_block_mask, backend="tpu", dynamic=True)
    bounded_program.reasons.clear()
    for length, block in ((40, 16), (56, 16), (60, 20)):
        actual = compiled(causal, 1, None, length, length, "tpu", BLOCK_SIZE=block)
        expected = create_block_mask(causal, 1, None, length, length, "cpu", BLOCK_SIZE=block)
        assert torch.equal(actual.to_dense().cpu(), expected.to_dense())
    assert not bounded_program.reasons


@pytest.fixture
def rules_only() -> Iterator[None]:
    """`torch.vmap` refuses what it would call once for each element."""
    before = torch._C._functorch._is_vmap_fallback_enabled()
    torch._C._functorch._set_vmap_fallback_enabled(False)
    yield
    torch._C._functorch._set_vmap_fallback_enabled(before)


@pytest.mark.usefixtures("rules_only")
def test_casts_are_traced_once_for_all_pairs() -> None:
    """By Inductor's decompositions a cast is an operator without a rule for batches."""

    def rounded(s: Tensor, b: Any, h: Any, i: Any, j: Any) -> Tensor:
        return s.bfloat16().float()

    check(
        lambda q, k, v: flex_attention(q, k, v, score_mod=rounded),
        lambda q, k, v: written_out(q, k, v, rounded, None),
        *operands(),
        backend="inductor",
    )


def looked_up(table: Tensor, known: int) -> Any:
    """Attention with a bias per key, which only the first `known` keys have."""

    def attend(q: Tensor, k: Tensor, v: Tensor, table: Tensor = table) -> Tensor:
        mask = create_block_mask(lambda b, h, i, j: j < known, None, None, 16, 16, device=q.device)
        return flex_attention(
            q, k, v, score_mod=lambda s, b, h, i, j: s + table[j], block_mask=mask
        )

    return attend


@pytest.mark.parametrize("dynamic", [False, True])
def test_index_that_the_mask_hides_may_be_anything(dynamic: bool) -> None:
    table = torch.randn(8)
    clamped = torch.arange(16).clamp(max=7)
    on_cpu = [x.requires_grad_() for x in (*operands(), table)]
    on_tpu = [x.detach().to("tpu").requires_grad_() for x in on_cpu]
    expected = written_out(
        *on_cpu[:3], lambda s, b, h, i, j: s + on_cpu[3][clamped], lambda b, h, i, j: j < 8
    )
    attend = looked_up(on_tpu[3], 8)
    actual = torch.compile(attend, backend="tpu", fullgraph=True, dynamic=dynamic)(*on_tpu)
    torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    expected.square().sum().backward()
    actual.square().sum().backward()
    for a, e in zip(on_tpu, on_cpu, strict=True):
        torch.testing.assert_close(a.grad.cpu(), e.grad, rtol=1e-3, atol=1e-4)


def test_index_that_the_mask_shows_is_checked() -> None:
    attend = looked_up(torch.randn(8, device="tpu"), 9)
    q, k, v = (x.to("tpu") for x in operands())
    with pytest.raises(IndexError, match="out of bounds for dimension 0 with size 8"):
        torch.compile(attend, backend="tpu", fullgraph=True)(q, k, v).cpu()


def test_gradient_of_a_captured_tensor_is_of_the_same_program() -> None:
    table = torch.randn(16, device="tpu", requires_grad=True)
    q, k, v = (x.to("tpu") for x in operands())
    compiled = torch.compile(looked_up(table, 16), backend="tpu", fullgraph=True)
    torch.autograd.grad(compiled(q, k, v).sum(), table)
    out = compiled(q, k, v)
    grad = torch.ones_like(out)
    torch.tpu.synchronize()
    before = torch.tpu.counters()["runs"]
    torch.autograd.grad(out, table, grad)
    torch.tpu.synchronize()
    assert torch.tpu.counters()["runs"] - before == 1


@pytest.mark.parametrize(
    ("shape", "lookup"),
    [
        ((2, 3, 6, 5), lambda x, b, h, i, j: x[b, h, i, j]),
        ((3, 6, 9), lambda x, b, h, i, j: x[h, i, j + 3]),
        ((5, 8), lambda x, b, h, i, j: x[j, 1 + i]),
        ((3,), lambda x, b, h, i, j: x[h]),
        ((2, 2), lambda x, b, h, i, j: x[b, b]),
        ((20,), lambda x, b, h, i, j: x[i - j + 5]),
    ],
)
@pytest.mark.parametrize("batch", [1, 2])
def test_lookups_at_positions_are_views(shape: Any, lookup: Any, batch: int) -> None:
    q, k, v = (torch.randn(batch, 3, n, 4) for n in (6, 5, 5))
    at = torch.meshgrid(*(torch.arange(n) for n in (batch, 3, 6, 5)), indexing="ij")
    texts: list[str] = []

    def function(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + lookup(x, b, h, i, j))

    def reference(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        return written_out(q, k, v, lambda s, *_: s + lookup(x, *at), None)

    options = {"debug_callback": lambda _, text: texts.append(text)}
    check(function, reference, q, k, v, torch.randn(shape), options=options)
    computed = shape == (20,) or (shape == (2, 2) and batch == 2)
    assert any("gather" in text or "scatter" in text for text in texts) == computed
    assert len(texts) == 2


def test_torchs_refusals_on_the_cpu_are_unchanged() -> None:
    q, k, v = (x.requires_grad_() for x in operands())
    with pytest.raises(Exception, match="does not support backward on CPU"):
        torch.compile(flex_attention, backend="eager")(q, k, v)
