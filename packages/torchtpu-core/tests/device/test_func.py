# SPDX-License-Identifier: Apache-2.0
"""torch.func transforms compose on the device as on CPU."""

from __future__ import annotations

import pytest
import torch
from torch import func
from torch.nn.functional import scaled_dot_product_attention as attend


def _compare(function):
    torch.testing.assert_close(function("tpu").cpu(), function("cpu"))


def _x(device):
    return torch.arange(1.0, 7.0, device=device).reshape(2, 3)


@pytest.mark.parametrize(
    "transform",
    [
        lambda x: func.grad(lambda y: y.sin().sum())(x),
        lambda x: func.grad(func.grad(lambda y: y.pow(3).sum()))(x[0, 0]),
        lambda x: func.vmap(lambda row: row * row.sum())(x),
        lambda x: func.vmap(torch.dot, in_dims=(0, None))(x, x[0]),
        lambda x: func.vmap(func.grad(lambda row: row.pow(2).sum()))(x),
        lambda x: func.vmap(lambda y: attend(y, y, y))(x.expand(2, 1, 2, 2, 3)),
        lambda x: func.jacrev(torch.sin)(x[0]),
        lambda x: func.jacfwd(torch.sin)(x[0]),
        lambda x: func.hessian(lambda y: y.pow(3).sum())(x[0]),
        lambda x: func.jvp(torch.exp, (x,), (x,))[1],
        lambda x: func.vjp(torch.exp, x)[1](x)[0],
        lambda x: func.vmap(lambda row: torch.where(row > 2, row, 0.0))(x),
        lambda x: func.vmap(lambda row, i: row[i], in_dims=(0, 0))(
            x, torch.tensor([0, 2], device=x.device)
        ),
        lambda x: func.functionalize(lambda y: y.clone().add_(1))(x),
        lambda x: func.vmap(lambda row: torch.linalg.vector_norm(row))(x),
    ],
)
def test_transform_matches_cpu(transform):
    _compare(lambda device: transform(_x(device)))


def test_functional_call_uses_the_given_parameters():
    model = torch.nn.Linear(3, 2).to("tpu")
    zeros = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    assert func.functional_call(model, zeros, (_x("tpu"),)).abs().sum().item() == 0


def test_per_sample_gradients_of_a_module():
    torch.manual_seed(0)
    reference = torch.nn.Linear(3, 2)
    state = {k: v.detach() for k, v in reference.state_dict().items()}

    def gradients(device):
        parameters = {k: v.to(device) for k, v in state.items()}

        def loss(p, row):
            return func.functional_call(reference, p, (row,)).square().sum()

        return func.vmap(func.grad(loss), in_dims=(None, 0))(parameters, _x(device))["weight"]

    _compare(gradients)


def test_model_ensemble_by_stacking_parameters():
    models = [torch.nn.Linear(3, 2).to("tpu") for _ in range(2)]
    parameters, buffers = func.stack_module_state(models)
    call = lambda p, b, x: func.functional_call(models[0], (p, b), (x,))  # noqa: E731
    together = func.vmap(call, in_dims=(0, 0, None))(parameters, buffers, _x("tpu"))
    for out, model in zip(together, models, strict=True):
        torch.testing.assert_close(out, model(_x("tpu")))


def test_vmap_randomness_modes():
    x = torch.zeros(2, 8, device="tpu")
    draw = lambda row: row + torch.rand(8, device="tpu")  # noqa: E731
    different = func.vmap(draw, randomness="different")(x)
    same = func.vmap(draw, randomness="same")(x)
    assert not torch.equal(different[0].cpu(), different[1].cpu())
    assert torch.equal(same[0].cpu(), same[1].cpu())
    with pytest.raises(RuntimeError, match="randomness"):
        func.vmap(draw)(x)
