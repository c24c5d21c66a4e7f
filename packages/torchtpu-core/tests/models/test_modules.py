# SPDX-License-Identifier: Apache-2.0
"""Every module of PyTorch's module database gives on the device what CPU gives.

Outputs, gradients of inputs and weights, and buffers, in training and evaluation mode
where they differ. The first sample of each module runs in float32; the others are slow
and in float64, where a difference is a mistake and not rounding. PyTorch takes other ways where
only the weights learn, as in a first layer, and where nothing does: those are tried as well.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.common_modules import ModuleInfo, module_db
from torch.utils import _pytree as pytree
from torchtpu_core.testing.op_database import compare, to_tpu

#: The database draws the windows of these in float64 whatever the dtype asked for.
_FLOAT64 = frozenset({"FractionalMaxPool2d", "FractionalMaxPool3d"})
_IDS = [info.module_cls.__name__ for info in module_db]


def _without_dropout(model: nn.Module) -> nn.Module:
    """Dropout masks differ between devices, so none is drawn."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        elif isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
            module.dropout = 0.0
    return model


def _leaf(value: Any) -> Any:
    """Samples may be results of one another; gradients are taken of each by itself."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return value


def _samples(
    info: ModuleInfo, training: bool, dtype: torch.dtype
) -> Iterator[tuple[nn.Module, Any, Any]]:
    """Modules on CPU, and the positional and keyword inputs of their forward."""
    torch.manual_seed(0)
    made = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=True, training=training
    )
    for sample in made:
        if sample.forward_input is not None:
            built = sample.constructor_input
            lazy = {"dtype": dtype} if info.is_lazy else {}  # it has no parameters to convert yet
            model = info.module_cls(*built.args, **built.kwargs, **lazy)
            model = model if info.is_lazy else model.to(dtype)
            inputs = sample.forward_input
            args, kwargs = pytree.tree_map(_leaf, (list(inputs.args), dict(inputs.kwargs)))
            yield _without_dropout(model).train(training), args, kwargs


def _results(model: nn.Module, args: Any, kwargs: Any) -> list[Any]:
    """Outputs, gradients of inputs and parameters, buffers."""
    out = model(*args, **kwargs)
    tensors = [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]
    leaves = [
        t
        for t in pytree.tree_leaves((args, kwargs, list(model.parameters())))
        if isinstance(t, torch.Tensor) and t.requires_grad
    ]
    loss = sum((t.square() * 0.5).sum() for t in tensors if t.requires_grad)
    gradients: Iterable[Any] = ()
    if leaves and isinstance(loss, torch.Tensor):
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [*tensors, *gradients, *model.buffers()]


def _check(
    info: ModuleInfo,
    training: bool,
    dtype: torch.dtype,
    first: int,
    last: int | None,
    results: Callable[[nn.Module, Any, Any], list[Any]] = _results,
) -> int:
    """Compare the samples from `first` to `last` and return how many there were."""
    count = 0
    samples = _samples(info, training, dtype)
    for model, args, kwargs in itertools.islice(samples, first, last):
        on_device = copy.deepcopy(model).to("tpu")
        moved_args, moved_kwargs = to_tpu((args, kwargs))
        if info.is_lazy:  # the first call makes the weights, from each device's generator
            model(*args, **kwargs)
            on_device(*moved_args, **moved_kwargs)
            on_device.load_state_dict(model.state_dict())
        expected = results(model, args, kwargs)
        compare(results(on_device, moved_args, moved_kwargs), expected)
        count += 1
    return count


def _only_weights_learn(model: nn.Module, args: Any, kwargs: Any) -> list[Any]:
    for tensor in pytree.tree_leaves((args, kwargs)):
        if isinstance(tensor, torch.Tensor):
            tensor.requires_grad_(False)
    return _results(model, args, kwargs)


def _nothing_learns(model: nn.Module, args: Any, kwargs: Any) -> list[Any]:
    with torch.no_grad():
        return _results(model.eval(), args, kwargs)


def _modes(info: ModuleInfo) -> list[bool]:
    return [True, False] if info.train_and_eval_differ else [True]


@pytest.mark.parametrize("info", module_db, ids=_IDS)
def test_module_matches_cpu(info: ModuleInfo) -> None:
    dtype = torch.float64 if info.module_cls.__name__ in _FLOAT64 else torch.float32
    assert all(_check(info, training, dtype, 0, 1) for training in _modes(info))


@pytest.mark.parametrize("results", [_only_weights_learn, _nothing_learns])
@pytest.mark.parametrize("info", module_db, ids=_IDS)
def test_module_matches_cpu_where_not_all_learns(
    info: ModuleInfo, results: Callable[[nn.Module, Any, Any], list[Any]]
) -> None:
    dtype = torch.float64 if info.module_cls.__name__ in _FLOAT64 else torch.float32
    assert _check(info, True, dtype, 0, 1, results)


@pytest.mark.slow
@pytest.mark.parametrize("info", module_db, ids=_IDS)
def test_module_matches_cpu_on_every_sample(info: ModuleInfo) -> None:
    for training in _modes(info):
        _check(info, training, torch.float64, 1, None)
