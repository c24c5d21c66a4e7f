# SPDX-License-Identifier: Apache-2.0
"""Every configuration in PyTorch's optimizer database steps on the device as on CPU.

The oracle is the for-loop implementation on CPU; the device runs the for-loop, the
foreach, the capturable and the fused one, where the optimizer has it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing._internal.common_optimizers import OptimizerInfo, optim_db

_STEPS = 3
#: It takes sparse gradients alone: `test_sparse_gradients.py` has some.
_INFOS = [info for info in optim_db if info.optim_cls is not torch.optim.SparseAdam]
_IMPLEMENTATIONS: dict[str, dict[str, bool]] = {
    "forloop": {"foreach": False},
    "foreach": {"foreach": True},
    "capturable": {"foreach": True, "capturable": True},
    "fused": {"fused": True},
}


def _served(info: OptimizerInfo) -> list[str]:
    """Implementations of the optimizer; LBFGS and Muon have one and take no flag."""
    names = ["forloop"]
    names += [n for n in ("foreach", "fused") if n in info.supported_impls]
    if "capturable" in info.supported_impls and "foreach" in info.supported_impls:
        names.append("capturable")
    return names


def _moved(value: Any, device: str) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _trained(info: OptimizerInfo, options: dict[str, Any], device: str) -> list[torch.Tensor]:
    """The parameters after some steps down a convex function."""
    weight = torch.linspace(-1.5, 2.0, 12, dtype=torch.float64).reshape(3, 4)
    bias = torch.tensor([[0.5, -1.5], [1.0, 2.0]], dtype=torch.float64)
    parameters = [torch.nn.Parameter(p.to(device)) for p in (weight, bias)]
    optimizer = info.optim_cls(parameters, **{k: _moved(v, device) for k, v in options.items()})

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = sum((p.square() + p.sin()).sum() for p in parameters)
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        return loss

    for _ in range(_STEPS):
        optimizer.step(closure)
    return [p.detach().cpu() for p in parameters]


def _cases() -> list[Any]:
    return [
        pytest.param(info, name, id=f"{info.optim_cls.__name__}-{name}")
        for info in _INFOS
        for name in _served(info)
    ]


@pytest.mark.parametrize(("info", "implementation"), _cases())
def test_every_configuration_steps_as_on_cpu(info: OptimizerInfo, implementation: str) -> None:
    flags = _IMPLEMENTATIONS[implementation]
    if "foreach" not in info.supported_impls:
        flags = {}
    for sample in info.optim_inputs_func(device="cpu"):
        options = {
            k: v
            for k, v in sample.kwargs.items()
            if k not in ("foreach", "fused", "capturable", "differentiable")
        }
        if implementation == "foreach" and isinstance(options.get("lr"), torch.Tensor):
            continue  # foreach takes a tensor as rate only where it is capturable
        plain = {} if "foreach" not in info.supported_impls else {"foreach": False}
        expected = _trained(info, {**options, **plain}, "cpu")
        actual = _trained(info, {**options, **flags}, "tpu")
        # Muon iterates in bfloat16: relative rounding 2**-8 of steps of the rate
        tolerance = 2**-7 if info.optim_cls is torch.optim.Muon else 1e-6
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
