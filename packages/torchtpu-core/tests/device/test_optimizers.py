# SPDX-License-Identifier: Apache-2.0
"""Every optimizer of torch.optim takes the steps it takes on CPU."""

from __future__ import annotations

import copy

import pytest
import torch

_OPTIMIZERS = [
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (torch.optim.Adam, {"lr": 0.1, "amsgrad": True}),
    (torch.optim.AdamW, {"lr": 0.1}),
    (torch.optim.Adamax, {"lr": 0.1}),
    (torch.optim.Adadelta, {"lr": 0.5}),
    (torch.optim.Adagrad, {"lr": 0.1}),
    (torch.optim.NAdam, {"lr": 0.1}),
    (torch.optim.RAdam, {"lr": 0.1}),
    (torch.optim.RMSprop, {"lr": 0.05, "momentum": 0.5, "centered": True}),
    (torch.optim.Rprop, {"lr": 0.1}),
    (torch.optim.ASGD, {"lr": 0.1}),
    (torch.optim.Adafactor, {"lr": 0.1}),
]
_STEPS = 3


def _parameters(device):
    weight = torch.arange(1.0, 7.0).reshape(2, 3) / 4
    bias = torch.tensor([0.5, -1.5])
    return [torch.nn.Parameter(p.to(device)) for p in (weight, bias)]


def _train(optimizer_type, options, device):
    parameters = _parameters(device)
    optimizer = optimizer_type(parameters, **options)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        sum((p.sin() * p).sum() for p in parameters).backward()
        optimizer.step()
    return [p.detach().cpu() for p in parameters]


def _same(actual, expected):
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=5e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("optimizer", "options"), _OPTIMIZERS, ids=[o.__name__ for o, _ in _OPTIMIZERS]
)
@pytest.mark.parametrize("foreach", [False, True])
def test_steps_match_cpu(optimizer, options, foreach):
    expected = _train(optimizer, {**options, "foreach": False}, "cpu")
    _same(_train(optimizer, {**options, "foreach": foreach}, "tpu"), expected)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [pair for pair in _OPTIMIZERS if pair[0].__name__ in {"SGD", "Adam", "AdamW", "Adagrad"}],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_fused_steps_match_cpu(optimizer, options):
    try:
        actual = _train(optimizer, {**options, "fused": True}, "tpu")
    except RuntimeError as error:
        assert "fused" in str(error)  # Adagrad: torch lists the devices it accepts
        assert optimizer is torch.optim.Adagrad
        return
    _same(actual, _train(optimizer, {**options, "foreach": False}, "cpu"))


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_fused_steps_take_a_rate_of_one_element_on_the_host(name):
    optimizer, options = getattr(torch.optim, name), {"fused": True}
    actual = _train(optimizer, {**options, "lr": torch.tensor([0.1])}, "tpu")
    _same(actual, _train(optimizer, {**options, "lr": 0.1}, "cpu"))


def test_lbfgs_matches_cpu():
    results = []
    for device in ("cpu", "tpu"):
        (weight, _) = _parameters(device)
        optimizer = torch.optim.LBFGS([weight], max_iter=3)

        def closure(weight=weight, optimizer=optimizer):
            optimizer.zero_grad()
            loss = weight.square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        results.append([weight.detach().cpu()])
    _same(results[1], results[0])


def test_sparse_adam_matches_cpu():
    weight, results = torch.linspace(-1, 1, 8).reshape(4, 2), []
    for device in ("cpu", "tpu"):
        embedding = torch.nn.Embedding.from_pretrained(
            weight.clone().to(device), False, sparse=True
        )
        optimizer = torch.optim.SparseAdam(embedding.parameters(), lr=0.1)
        for rows in ([1, 3, 1], [0, 1, 1]):
            optimizer.zero_grad()
            embedding(torch.tensor(rows, device=device)).square().sum().backward()
            optimizer.step()
        results.append([embedding.weight.detach().cpu()])
    _same(results[1], results[0])


def test_muon_matches_cpu():
    results = []
    for device in ("cpu", "tpu"):
        weight = _parameters(device)[0]
        optimizer = torch.optim.Muon([weight], lr=0.1)
        (weight.sin() * weight).sum().backward()
        optimizer.step()
        results.append([weight.detach().cpu()])
    # Newton-Schulz runs in bfloat16 (relative precision 2**-8), scaled by lr = 0.1
    torch.testing.assert_close(results[1][0], results[0][0], rtol=0.1 * 2**-7, atol=0.1 * 2**-6)


def test_learning_rate_as_a_tensor_and_scheduler():
    results = []
    for device in ("cpu", "tpu"):
        parameters = _parameters(device)
        optimizer = torch.optim.AdamW(parameters, lr=torch.tensor(0.1), foreach=False)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
        for _ in range(_STEPS):
            optimizer.zero_grad()
            sum((p.sin() * p).sum() for p in parameters).backward()
            optimizer.step()
            scheduler.step()
        results.append([p.detach().cpu() for p in parameters])
    _same(results[1], results[0])


def test_changing_learning_rate_compiles_nothing_new():
    parameters = _parameters("tpu")
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    def step(rate):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        sum((p.sin() * p).sum() for p in parameters).backward()
        optimizer.step()

    for rate in (0.3, 0.2):
        step(rate)
    torch.tpu.reset_counters()
    step(0.05)
    assert torch.tpu.counters()["programs"] == 0


def test_state_follows_the_parameters_device():
    parameters = _parameters("tpu")
    optimizer = torch.optim.Adam(parameters)
    sum(p.sum() for p in parameters).backward()
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())["state"]
    assert all(v["exp_avg"].device.type == "tpu" for v in state.values())


def _after_steps_with_a_tensor_as_learning_rate(optimizer, device):
    parameters = [torch.arange(1.0, 4, device=device), torch.ones(2, 2, device=device)]
    parameters = [torch.nn.Parameter(p) for p in parameters]
    rule = optimizer(parameters, lr=torch.tensor(0.1), foreach=True)
    for _ in range(3):
        rule.zero_grad()
        (parameters[0].sum() ** 2 + (parameters[1] * 3).pow(2).sum()).backward()
        rule.step()
    return [p.detach().cpu() for p in parameters]


@pytest.mark.parametrize("name", ["Adagrad", "ASGD", "NAdam", "RAdam", "SGD"])
def test_learning_rate_that_is_a_tensor_on_the_host_gives_what_cpu_gives(name):
    steps = _after_steps_with_a_tensor_as_learning_rate
    optimizer = getattr(torch.optim, name)
    torch.testing.assert_close(steps(optimizer, "tpu"), steps(optimizer, "cpu"))


def test_list_function_refuses_host_tensors_that_are_not_numbers():
    x, y = [torch.ones(2, device="tpu")], [torch.ones(2)]
    with pytest.raises(RuntimeError, match="same device"):
        torch._foreach_mul(x, y)
    assert torch._foreach_mul(x, [torch.tensor(3.0)])[0].tolist() == [3.0, 3.0]
