# SPDX-License-Identifier: Apache-2.0
"""Lists whose tensors lie on several devices: ``_foreach_*`` takes them one by one, as on CUDA."""

from __future__ import annotations

import pytest
import torch

VALUES = [torch.arange(3.0), torch.arange(4.0), torch.ones(2, 2)]
PLACES = {"tpus": ["tpu:0", "tpu:1", "tpu:0"], "host too": ["cpu", "tpu:0", "tpu:1"]}
CALLS = {
    "mul": lambda x: torch._foreach_mul(x, 2.0),
    "mul_": lambda x: torch._foreach_mul_(x, [1.0, 2.0, 3.0]),
    "number": lambda x: torch._foreach_mul(x, torch.tensor(2.0)),
    "norm": torch._foreach_norm,
    "zero_": torch._foreach_zero_,
    "addcdiv_": lambda x: torch._foreach_addcdiv_(x, x, [t + 1 for t in x], value=0.5),
    "lerp": lambda x: torch._foreach_lerp(x, [t * 2 for t in x], 0.5),
    "max": torch._foreach_max,
}


def placed(places: list[str]) -> list[torch.Tensor]:
    return [value.to(place, copy=True) for value, place in zip(VALUES, places, strict=True)]


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("name", CALLS)
def test_each_tensor_is_worked_on_where_it_lies(name, places):
    on_host, tensors = placed(["cpu"] * 3), placed(places)
    expected, results = CALLS[name](on_host), CALLS[name](tensors)
    for tensor, place, value in zip(tensors, places, on_host, strict=True):
        assert tensor.device == torch.device(place)
        assert torch.equal(tensor.cpu(), value)
    for result, place, value in zip(results or (), places, expected or (), strict=True):
        assert result.device == torch.device(place)
        torch.testing.assert_close(result.cpu(), value)


def test_copies_go_between_devices():
    targets = [torch.zeros(3, device="tpu:0"), torch.zeros(4, device="tpu:1"), torch.zeros(2, 2)]
    torch._foreach_copy_(targets, placed(["tpu:1", "cpu", "tpu:0"]))
    for target, value in zip(targets, VALUES, strict=True):
        assert torch.equal(target.cpu(), value)


def test_two_tensors_of_one_call_must_share_a_device():
    with pytest.raises(RuntimeError, match="tpu:0 and tpu:1"):
        torch._foreach_mul(placed(["tpu:0"] * 3), placed(["tpu:0", "tpu:1", "tpu:0"]))


def test_a_compiled_step_over_devices_clips_all_gradients():
    def step(parameters):
        torch.nn.utils.clip_grad_norm_(parameters, 0.5)
        return torch._foreach_add(parameters, [p.grad for p in parameters])

    grads = [[torch.ones(3), torch.ones(4)], [torch.ones(3), torch.ones(4)]]
    on_host = [torch.zeros(3, requires_grad=True), torch.zeros(4, requires_grad=True)]
    places = ["tpu:0", "tpu:1"]
    there = [p.detach().to(d).requires_grad_() for p, d in zip(on_host, places, strict=True)]
    for parameters, own in zip((on_host, there), grads, strict=True):
        for parameter, grad in zip(parameters, own, strict=True):
            parameter.grad = grad.to(parameter.device)
    expected = step(on_host)
    for result, value in zip(torch.compile(step, backend="tpu")(there), expected, strict=True):
        torch.testing.assert_close(result.detach().cpu(), value.detach())
