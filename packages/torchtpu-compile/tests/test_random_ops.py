# SPDX-License-Identifier: Apache-2.0
"""Random ops under plain `torch.compile`: the numbers of eager mode, in its order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def _empty(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty_like(x, dtype=dtype)


#: What a user draws, by name; each draws the same numbers compiled.
DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "exponential": lambda x: _empty(x).exponential_(0.37),
    "exponential of doubles": lambda x: _empty(x, torch.float64).exponential_(3.0),
    "cauchy": lambda x: _empty(x).cauchy_(1.5, 0.7),
    "geometric": lambda x: _empty(x).geometric_(0.3),
    "geometric of whole numbers": lambda x: _empty(x, torch.int64).geometric_(0.1),
    "uniform doubles": lambda x: torch.rand(7, dtype=torch.float64, device=x.device),
    "normal of a size": lambda x: torch.normal(2.0, 3.0, (4, 5), device=x.device),
    "normal of means": lambda x: torch.normal(x, 1.0),
    "normal of deviations": lambda x: torch.normal(0.0, x.abs()),
    "gumbel": lambda x: F.gumbel_softmax(x, hard=True),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.3, True),
    "dropout of bfloat16": lambda x: F.dropout(x.bfloat16(), 0.4),
    "coins of doubles": lambda x: _empty(x, torch.float64).bernoulli_(0.4),
    "whole numbers": lambda x: torch.randint_like(x, 3, 9),
    "random_": lambda x: _empty(x).random_(9),
}
_VALUES = torch.linspace(-3, 3, 2000).reshape(40, 50)


@pytest.mark.parametrize("name", DRAWS)
def test_an_op_draws_the_numbers_of_eager_mode(name: str) -> None:
    _assert_draws_alike(DRAWS[name])


def test_draws_of_many_kinds_keep_their_order() -> None:
    def mixed(x: Tensor) -> tuple[Tensor, ...]:
        tokens = torch.multinomial(x.softmax(-1), 2)
        order = torch.randperm(10, device=x.device)
        coins = torch.bernoulli(x.sigmoid())
        noise = torch.rand_like(x)
        waits = _empty(x).exponential_()
        more = torch.multinomial(x.softmax(-1), 2)
        return tokens, order, coins, noise, waits, more, torch.randn_like(x), torch.rand_like(x)

    _assert_draws_alike(mixed)


def test_equal_draws_stay_apart() -> None:
    def twice(x: Tensor) -> tuple[Tensor, ...]:
        first, second = (torch.rand(40, 50, device=x.device) for _ in range(2))
        one, two = (torch.randint(0, 99, (40,), device=x.device) for _ in range(2))
        return first - second, one - two

    results = _assert_draws_alike(twice)
    assert all(bool((r != 0).any()) for r in results)


@pytest.mark.parametrize("backend", ["tpu", "inductor"])
def test_a_draw_that_nothing_uses_counts(backend: str) -> None:
    """Inductor drops it unless it is told to draw eager mode's numbers."""

    def second(x: Tensor) -> Tensor:
        torch.rand(4, device=x.device)
        F.dropout(x, 0.4)
        return torch.rand_like(x)

    x = torch.zeros(3, 5, device="tpu")
    torch.manual_seed(0)
    expected = second(x), torch.rand(2, device="tpu")
    torch.manual_seed(0)
    with torch._inductor.config.patch(fallback_random=backend == "inductor"):
        actual = torch.compile(second, backend=backend)(x), torch.rand(2, device="tpu")
    for a, e in zip(actual, expected, strict=True):
        assert torch.equal(a.cpu(), e.cpu())


@pytest.mark.parametrize("option", ["fallback_random", "pattern_matcher"])
def test_options_of_inductor_change_no_numbers(option: str) -> None:
    changed = option == "fallback_random"

    def mixed(x: Tensor) -> tuple[Tensor, ...]:
        return torch.rand_like(x), _empty(x).exponential_(), F.dropout(x, 0.4), torch.randn_like(x)

    _assert_draws_alike(mixed, options={option: changed})


def test_a_sampler_in_inference_mode_draws_the_tokens_of_eager_mode() -> None:
    def sample(logits: Tensor) -> Tensor:
        waits = torch.empty_like(logits).exponential_(1)
        return torch.argmax(logits.softmax(-1) / waits, dim=-1)

    with torch.inference_mode():
        _assert_draws_alike(sample)


def test_training_with_a_recomputed_region_draws_its_masks_once() -> None:
    weight = torch.linspace(-1, 1, 64).reshape(8, 8)

    def block(x: Tensor, w: Tensor) -> Tensor:
        return F.dropout(torch.tanh(x @ w), 0.4) * torch.empty_like(x).exponential_()

    def loss(x: Tensor, w: Tensor) -> Tensor:
        inner = checkpoint(block, x, w, use_reentrant=False)
        return (inner + F.dropout(x, 0.5) * torch.rand_like(x)).square().sum()

    gradients = []
    for function in (loss, torch.compile(loss)):
        w = weight.to("tpu").requires_grad_()
        torch.manual_seed(5)
        function(torch.ones(4, 8, device="tpu"), w).backward()
        gradients.append(w.grad.cpu())
    torch.testing.assert_close(gradients[1], gradients[0])


def _attend(x: Tensor, w: Tensor, dropout_p: float) -> Tensor:
    q, k, v = (x @ w).view(2, 8, 3, 4, 8).permute(2, 0, 3, 1, 4)
    attended = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=True)
    return attended.transpose(1, 2).reshape(2, 8, 32)


def _leaky(x: Tensor, w: Tensor) -> Tensor:
    return F.rrelu((x @ w).tanh() - 0.3, training=True) * torch.poisson(x.abs() * 5)


REGIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "attention": lambda x, w: _attend(x, w, 0.0),
    "attention that drops": lambda x, w: _attend(x, w, 0.4),
    "rectifiers and counts": _leaky,
}


@pytest.mark.parametrize("name", REGIONS)
@pytest.mark.parametrize("backend", ["tpu", "inductor"])
def test_a_recomputed_region_with_other_random_ops_draws_once(backend: str, name: str) -> None:
    def loss(x: Tensor, w: Tensor) -> Tensor:
        inner = checkpoint(REGIONS[name], F.dropout(x, 0.5), w, use_reentrant=False)
        return (inner[..., :8] * torch.rand_like(x[..., :8])).square().sum()

    torch.compiler.reset()
    x = torch.linspace(-1, 2, 2 * 8 * 32).reshape(2, 8, 32).to("tpu")
    gradients, states = [], []
    for function in (loss, torch.compile(loss, backend=backend)):
        w = torch.linspace(-1, 1, 32 * 96).reshape(32, 96).cos().to("tpu").requires_grad_()
        torch.manual_seed(5)
        value = function(x, w if "attention" in name else w[:, :32])
        torch.rand(3, device="tpu")  # the generator moves on before the backward pass
        value.backward()
        gradients.append(w.grad.cpu())
        states.append(torch.tpu.get_rng_state())
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-4)
    assert torch.equal(states[0], states[1])


@pytest.mark.parametrize("backend", ["tpu", "inductor"])
def test_draws_of_open_sizes_are_one_program(backend: str) -> None:
    def noisy(x: Tensor) -> Tensor:
        whole = torch.randint(0, 9, x.shape, device=x.device)
        noise = torch.rand_like(x) + _empty(x).exponential_() + F.rrelu(x - 2, training=True)
        return F.dropout(x, 0.3) + noise + whole

    compiled = torch.compile(noisy, backend=backend, dynamic=True)
    programs = []
    for length in (70, 71, 72, 75):  # of one bucket
        x = torch.ones(length, 5, device="tpu")
        torch.manual_seed(3)
        expected = noisy(x).cpu()
        torch.manual_seed(3)
        torch.tpu.synchronize()
        before = torch.tpu.counters()["programs"]
        actual = compiled(x).cpu()
        programs.append(torch.tpu.counters()["programs"] - before)
        torch.testing.assert_close(actual, expected)
    assert programs[1:] == [0, 0, 0]


@pytest.mark.parametrize("backend", ["tpu", "inductor"])
@pytest.mark.parametrize("key_heads", [4, 2])
def test_attention_of_an_open_length_drops_what_eager_mode_drops(
    backend: str, key_heads: int
) -> None:
    def attend(q: Tensor, kv: Tensor) -> Tensor:
        grouped = key_heads != 4
        return F.scaled_dot_product_attention(
            q, kv, kv, dropout_p=0.4, is_causal=True, enable_gqa=grouped
        )

    compiled = torch.compile(attend, backend=backend)
    for length in (65, 70, 75, 65):
        values = torch.linspace(-2, 2, 2 * length * 16).reshape(2, 1, length, 16)
        found = []
        for run in (attend, compiled):
            q = values.expand(2, 4, length, 16).to("tpu").requires_grad_()
            kv = values.expand(2, key_heads, length, 16).cos().to("tpu").requires_grad_()
            torch.manual_seed(3)
            out = run(q, kv)
            out.square().sum().backward()
            found.append([x.detach().cpu() for x in (out, q.grad, kv.grad)])
        for actual, expected in zip(found[1], found[0], strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


def test_graphs_of_the_cpu_keep_inductors_draws() -> None:
    from torch._inductor.fx_passes import replace_random
    from torch._inductor.virtualized import V

    graph = torch.fx.Graph()
    node = graph.call_function(
        torch.ops.aten.rand.default, ([3],), {"device": torch.device("cpu"), "dtype": torch.float32}
    )
    node.meta["val"] = torch.empty(3)
    graph.output(node)
    module = torch.fx.GraphModule({}, graph)
    with V.set_fake_mode(torch._subclasses.FakeTensorMode()):
        replace_random.replace_random_passes(module)
    targets = {str(n.target) for n in module.graph.nodes}
    assert not any("torchtpu" in t for t in targets)
    assert any("inductor_random" in t for t in targets)


def _assert_draws_alike(
    function: Callable[[Tensor], Tensor | tuple[Tensor, ...]],
    options: dict[str, bool] | None = None,
) -> tuple[Tensor, ...]:
    """Compare two calls in a row, and the state of the generator after them."""
    torch.compiler.reset()
    x = _VALUES.to("tpu")
    drawn, states = [], []
    for run in (function, torch.compile(function, options=options)):
        torch.manual_seed(3)
        results = [run(x), run(x)]
        drawn.append([t for r in results for t in (r if isinstance(r, tuple) else (r,))])
        states.append(torch.tpu.get_rng_state())
    for actual, expected in zip(drawn[1], drawn[0], strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(states[0], states[1])
    return tuple(drawn[1])
