# SPDX-License-Identifier: Apache-2.0
"""LSTM, GRU and RNN layers, dense and packed, against the CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

T, B, F, H = 7, 4, 5, 6
LENGTHS = torch.tensor([7, 5, 5, 2])
CELLS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *args, **options: nn.RNN(*args, nonlinearity="relu", **options),
}
LAYERS = {
    "one": {},
    "reversed": {"bidirectional": True},
    "deep": {"num_layers": 3, "bidirectional": True},
    "batch first": {"batch_first": True, "num_layers": 2},
    "no bias": {"bias": False},
}
PROJECTED = {
    "one": {},
    "no bias": {"bias": False},
    "deep": {"num_layers": 2, "bidirectional": True, "batch_first": True},
}


@pytest.fixture(autouse=True)
def precise() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")


def pair(cell: str, **options: Any) -> tuple[nn.RNNBase, nn.RNNBase]:
    """One layer on the CPU and on the device."""
    host = CELLS[cell](F, H, **options)
    return host, copy.deepcopy(host).to("tpu")


def results(rnn: nn.RNNBase, x: Tensor, packed: bool) -> list[Tensor]:
    """Output and last states, flat."""
    options = {"batch_first": rnn.batch_first}
    given = pack_padded_sequence(x, LENGTHS, **options) if packed else x
    output, last = rnn(given)
    output = output.data if isinstance(output, PackedSequence) else output
    return [output, *(last if isinstance(last, tuple) else (last,))]


def close(actual: list[Any], expected: list[Any], **tolerance: float) -> None:
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.detach().cpu(), e.detach(), **tolerance)


@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("cell", CELLS)
def test_results_and_gradients_equal_cpu(cell: str, layers: str, packed: bool) -> None:
    host, device = pair(cell, **LAYERS[layers])
    x = torch.randn(*((B, T) if host.batch_first else (T, B)), F)
    found = []
    for rnn, place in ((host, "cpu"), (device, "tpu")):
        operand = x.clone().to(place).requires_grad_()
        outs = results(rnn, operand, packed)
        sum((o * (i + 1)).sin().sum() for i, o in enumerate(outs)).backward()
        found.append([*outs, operand.grad, *(p.grad for p in rnn.parameters())])
    close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_a_long_sequence_is_one_operator_per_layer_and_direction() -> None:
    _, device = pair("lstm", num_layers=2, bidirectional=True)
    x = torch.randn(300, B, F, device="tpu")
    device(x)
    torch.tpu.synchronize()
    torch.tpu.reset_counters()
    device(x)
    torch.tpu.synchronize()
    assert torch.tpu.counters()["ops"] < 30


@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
@pytest.mark.parametrize("cell", CELLS)
def test_gradients_of_gradients_equal_cpu(cell: str, packed: bool) -> None:
    host, device = pair(cell, bidirectional=True)
    x = torch.randn(T, B, F)
    found = []
    for rnn, place in ((host, "cpu"), (device, "tpu")):
        operand = x.clone().to(place).requires_grad_()
        total = sum(o.sin().sum() for o in results(rnn, operand, packed))
        (gradient,) = torch.autograd.grad(total, operand, create_graph=True)
        gradient.square().sum().backward()
        found.append([operand.grad, *(p.grad for p in rnn.parameters())])
    close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_only_the_last_state_is_used() -> None:
    host, device = pair("lstm", bidirectional=True)
    x = torch.randn(T, B, F)
    for rnn, place in ((host, "cpu"), (device, "tpu")):
        rnn(x.to(place))[1][1].sum().backward()
    close([p.grad for p in device.parameters()], [p.grad for p in host.parameters()])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    host, device = pair("gru", num_layers=2)
    host, device = host.to(dtype), device.to(dtype)
    x = torch.randn(T, B, F).to(dtype)
    tolerance = {"rtol": 1e-10, "atol": 1e-10} if dtype == torch.float64 else {}
    loose = {"rtol": 2e-2, "atol": 2e-2}
    close(results(device, x.to("tpu"), False), results(host, x, False), **(tolerance or loose))


def test_unsorted_packed_sequences_and_a_given_state() -> None:
    host, device = pair("gru")
    x, first = torch.randn(T, B, F), torch.randn(1, B, H)
    lengths = torch.tensor([2, 7, 1, 5])
    found = []
    for rnn, place in ((host, "cpu"), (device, "tpu")):
        given = pack_padded_sequence(x.to(place), lengths, enforce_sorted=False)
        output, last = rnn(given, first.to(place))
        found.append([output.data, last])
    close(found[1], found[0])


@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
@pytest.mark.parametrize("layers", PROJECTED)
def test_projected_states_equal_cpu(layers: str, packed: bool) -> None:
    host, device = pair("lstm", proj_size=3, **PROJECTED[layers])
    x = torch.randn(*((B, T) if host.batch_first else (T, B)), F)
    found = []
    for rnn, place in ((host, "cpu"), (device, "tpu")):
        operand = x.clone().to(place).requires_grad_()
        outs = results(rnn, operand, packed)
        total = sum((o * (i + 1)).sin().sum() for i, o in enumerate(outs))
        (gradient,) = torch.autograd.grad(total, operand, create_graph=True)
        (total + gradient.square().sum()).backward()
        found.append([*outs, operand.grad, *(p.grad for p in rnn.parameters())])
    close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_a_projected_layer_is_one_operator_however_long() -> None:
    _, device = pair("lstm", proj_size=3)
    counts = []
    for steps in (4, 40):
        x = torch.randn(steps, B, F, device="tpu")
        torch.tpu.synchronize()
        torch.tpu.reset_counters()
        device.zero_grad()
        device(x)[0].sum().backward()
        torch.tpu.synchronize()
        counts.append(torch.tpu.counters()["ops"])
    assert counts[0] == counts[1]


def test_forward_mode_goes_step_by_step() -> None:
    x, tangent = torch.randn(T, B, F), torch.randn(T, B, F)
    host, device = pair("gru")
    expected = torch.func.jvp(lambda v: host(v)[0], (x,), (tangent,))
    actual = torch.func.jvp(lambda v: device(v)[0], (x.to("tpu"),), (tangent.to("tpu"),))
    close(list(actual), list(expected))


def test_transforms_of_torch_func() -> None:
    host, device = pair("lstm")
    x = torch.randn(3, T, B, F)

    def per_sample(rnn: nn.RNNBase, samples: Tensor) -> Tensor:
        parameters = dict(rnn.named_parameters())

        def loss(values: dict[str, Tensor], sample: Tensor) -> Tensor:
            return torch.func.functional_call(rnn, values, (sample,))[0].square().sum()

        gradients = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, samples)
        return gradients["weight_hh_l0"]

    close([per_sample(device, x.to("tpu"))], [per_sample(host, x)], rtol=1e-4, atol=1e-5)


def test_dropout_between_layers_is_reproducible_and_off_in_evaluation() -> None:
    _, device = pair("lstm", num_layers=2, dropout=0.5)
    x = torch.randn(T, B, F, device="tpu")
    runs = []
    for _ in range(2):
        torch.manual_seed(1)
        runs.append(device(x)[0].cpu())
    assert torch.equal(*runs)
    assert not torch.equal(runs[0], device(x)[0].cpu())
    device.eval()
    assert torch.equal(device(x)[0].cpu(), device(x)[0].cpu())


def test_autocast_runs_the_layer_in_the_lower_precision() -> None:
    host, device = pair("lstm")
    x = torch.randn(T, B, F)
    with torch.autocast("tpu", torch.bfloat16):
        output, _ = device(x.to("tpu"))
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float().cpu(), host(x)[0], rtol=3e-2, atol=3e-2)


def test_inference_mode_and_no_grad() -> None:
    host, device = pair("lstm", bidirectional=True)
    x = torch.randn(T, B, F)
    for context in (torch.inference_mode, torch.no_grad):
        with context():
            close(results(device, x.to("tpu"), True), results(host, x, True))


@pytest.mark.parametrize("shape", [(0, B, F), (T, B, F + 1)])
def test_mistakes_raise_as_on_the_cpu(shape: tuple[int, ...]) -> None:
    host, device = pair("lstm")
    x = torch.randn(shape)
    with pytest.raises(RuntimeError) as expected:
        host(x)
    with pytest.raises(RuntimeError) as actual:
        device(x.to("tpu"))
    assert str(actual.value) == str(expected.value)
