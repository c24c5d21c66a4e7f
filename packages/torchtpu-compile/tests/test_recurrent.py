# SPDX-License-Identifier: Apache-2.0
"""Compiled recurrent layers equal the CPU's, with values and gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import rnn
from torchtpu_compile import bounded_program, eager_sizes, recurrent_notice
from torchtpu_compile.explanation import explain

LAYERS = {
    "lstm": (nn.LSTM, {}),
    "projected": (nn.LSTM, {"proj_size": 3}),
    "deep": (nn.LSTM, {"proj_size": 3, "num_layers": 2, "bidirectional": True}),
    "gru": (nn.GRU, {"num_layers": 2, "batch_first": True}),
    "rnn": (nn.RNN, {"bias": False}),
}
FEATURES, HIDDEN = 4, 6


@pytest.fixture(autouse=True)
def _traced() -> Iterator[None]:
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


def _results(call: Any, layer: nn.Module, x: Tensor) -> list[Tensor]:
    """Results of a call, then the gradients of operand and weights of a sum of them."""
    layer.zero_grad()
    x.requires_grad_()
    output, state = call(x)
    results = [output, *(state if isinstance(state, tuple) else (state,))]
    sum((r * (i + 1)).sin().sum() for i, r in enumerate(results)).backward()  # type: ignore[union-attr]
    return [*results, x.grad, *(p.grad for p in layer.parameters())]  # type: ignore[list-item]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_compiled_recurrent_layer_equals_cpu(name: str, dynamic: bool) -> None:
    kind, options = LAYERS[name]
    host = kind(FEATURES, HIDDEN, **options)
    device = deepcopy(host).to("tpu")
    compiled = torch.compile(device, backend="tpu", fullgraph=True, dynamic=dynamic)
    for steps in (5, 7) if dynamic else (5,):
        x = torch.randn(steps, 3, FEATURES)
        actual = _results(compiled, device, x.to("tpu"))
        for a, e in zip(actual, _results(host, host, x), strict=True):
            torch.testing.assert_close(a.cpu(), e, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_lengths_and_batches_share_programs(name: str) -> None:
    kind, options = LAYERS[name]
    host = kind(FEATURES, HIDDEN, **options)
    device = deepcopy(host).to("tpu")
    compiled = torch.compile(device, backend="tpu", fullgraph=True, dynamic=True)
    bounded_program.reasons.clear()
    for steps, batch in ((5, 3), (9, 2), (7, 8), (8, 7), (6, 5), (5, 6)):
        x = torch.randn(steps, batch, FEATURES)
        actual = _results(compiled, device, x.to("tpu"))
        for a, e in zip(actual, _results(host, host, x), strict=True):
            torch.testing.assert_close(a.cpu(), e, rtol=1e-4, atol=1e-5)
    assert not bounded_program.reasons, bounded_program.reasons


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_open_batch_of_fixed_length_shares_programs(kind: type[nn.RNNBase]) -> None:
    host = kind(FEATURES, HIDDEN)
    device = deepcopy(host).to("tpu")
    compiled = torch.compile(device, backend="tpu", fullgraph=True, dynamic=False)
    bounded_program.reasons.clear()
    for batch in (3, 2, 6):
        x = torch.randn(5, batch, FEATURES)
        given = x.to("tpu")
        torch._dynamo.mark_dynamic(given, 1)
        actual = _results(compiled, device, given)
        for a, e in zip(actual, _results(host, host, x), strict=True):
            torch.testing.assert_close(a.cpu(), e, rtol=1e-4, atol=1e-5)
    assert not bounded_program.reasons, bounded_program.reasons


def test_a_given_state_of_an_open_batch_reaches_both_directions() -> None:
    host = nn.LSTM(FEATURES, HIDDEN, bidirectional=True)
    device = deepcopy(host).to("tpu")
    compiled = torch.compile(device, backend="tpu", fullgraph=True, dynamic=True)
    for steps, batch in ((5, 3), (7, 6), (6, 5)):
        given = torch.randn(steps, batch, FEATURES), *torch.randn(2, 2, batch, HIDDEN)
        found = []
        for layer, place in ((compiled, "tpu"), (host, "cpu")):
            x, h, c = leaves = [t.to(place).requires_grad_() for t in map(torch.clone, given)]
            output, (last, cell) = layer(x, (h, c))
            (output.sin().sum() + (last * cell).sum()).backward()
            found.append([output, last, cell, *(t.grad for t in leaves)])
        for a, e in zip(*found, strict=True):
            torch.testing.assert_close(a.cpu(), e, rtol=1e-4, atol=1e-5)


def _packed_results(layer: nn.Module, x: Tensor, lengths: Tensor) -> list[Tensor]:
    layer.zero_grad()
    x.requires_grad_()
    packed = rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    output, _ = layer(packed)
    padded, _ = rnn.pad_packed_sequence(output)
    padded.sin().sum().backward()
    return [padded, x.grad, *(p.grad for p in layer.parameters())]  # type: ignore[list-item]


def test_packed_sequences_of_new_lengths_share_programs_in_eager_mode(
    compiles: Callable[[], int],
) -> None:
    host = nn.LSTM(FEATURES, HIDDEN)
    device = deepcopy(host).to("tpu")
    eager_sizes.reasons.clear()
    for seen in range(10):
        lengths = torch.randint(17, 30, (3,))
        x = torch.randn(int(lengths.max()), 3, FEATURES)
        actual = _packed_results(device, x.to("tpu"), lengths)
        for a, e in zip(actual, _packed_results(host, x, lengths), strict=True):
            torch.testing.assert_close(a.cpu(), e, rtol=1e-4, atol=1e-5)
        torch.tpu.synchronize()
        if seen == 6:
            before = compiles()
    assert compiles() - before < 4  # pieces; a layer of each length would be 6
    assert not [reason for reason in eager_sizes.reasons if "recurrent" in reason]


class _Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(FEATURES, HIDDEN), nn.Linear(HIDDEN, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0])


def test_layer_that_dynamo_leaves_out_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent_notice, "_told", [])
    model, x = _Tagger().to("tpu"), torch.rand(3, 2, FEATURES, device="tpu")
    compiled = torch.compile(model, backend="tpu")
    with torch._dynamo.config.patch(allow_rnn=False):
        with pytest.warns(recurrent_notice.LeftOutWarning, match=r"test_recurrent.*allow_rnn"):
            compiled(x)
        with warnings.catch_warnings():
            warnings.simplefilter("error", recurrent_notice.LeftOutWarning)
            compiled(x)
            explained = explain(model)(x)
    assert "test_recurrent" in explained.left_out[0]
    assert not explain(model)(x).left_out


def test_eager_layer_is_no_news(recwarn: pytest.WarningsRecorder) -> None:
    with torch._dynamo.config.patch(allow_rnn=False):
        _Tagger().to("tpu")(torch.rand(3, 2, FEATURES, device="tpu"))
    assert not [w for w in recwarn if w.category is recurrent_notice.LeftOutWarning]
