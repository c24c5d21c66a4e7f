# SPDX-License-Identifier: Apache-2.0
"""Optimizers' operators on lists of distributed tensors, run on their local parts.

DTensor asks for the sharding of each tensor of a list with the whole list in hand, which
takes minutes for the thousand parameters of a large model. An elementwise operator on
tensors that lie alike has nothing to ask: it is the same operator on their local parts.
Others, and tensors that do not lie alike or hold partial sums, are left to DTensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

_ELEMENTWISE = frozenset(
    f"_foreach_{name}"
    for name in (
        *("abs", "add", "addcdiv", "addcmul", "clamp_max", "clamp_min", "copy", "div", "erf"),
        *("exp", "expm1", "lerp", "log", "maximum", "minimum", "mul", "neg", "pow"),
        *("reciprocal", "round", "rsqrt", "sigmoid", "sign", "sqrt", "sub", "tanh", "zero"),
    )
)


def on_local_parts(
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    run: Callable[[Any, Sequence[Any], Mapping[str, Any]], Any],
) -> Any:
    """The result of an operator on lists of distributed tensors, or NotImplemented.

    Args:
        func: the overload.
        args: its arguments.
        kwargs: its keyword arguments.
        run: runs an overload on ordinary tensors.
    """
    name = func._schema.name.partition("::")[2]
    if name.removesuffix("_") not in _ELEMENTWISE or kwargs:
        return NotImplemented
    lists = [a for a in args if isinstance(a, (list, tuple)) and a and hasattr(a[0], "_spec")]
    if not lists or not _lie_alike(lists):
        return NotImplemented
    done = run(func, [_local(argument) for argument in args], {})
    if name.endswith("_"):
        return done
    return [_like(first, local) for first, local in zip(lists[0], done, strict=True)]


def _lie_alike(lists: Sequence[Sequence[Any]]) -> bool:
    """Whether the tensors at each place of the lists are split in the same way, and are whole."""
    for tensors in zip(*lists, strict=True):
        specs = [getattr(tensor, "_spec", None) for tensor in tensors]
        first = specs[0]
        if first is None or any(placement.is_partial() for placement in first.placements):
            return False
        for tensor, spec in zip(tensors, specs, strict=True):
            if spec is None or spec.placements != first.placements or spec.mesh != first.mesh:
                return False
            if tensor.shape != tensors[0].shape:
                return False
    return True


def _local(argument: Any) -> Any:
    if not isinstance(argument, (list, tuple)):
        return getattr(argument, "_local_tensor", argument)
    return [getattr(item, "_local_tensor", item) for item in argument]


def _like(tensor: Any, local: Any) -> Any:
    """A distributed tensor that lies as another."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        local,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
