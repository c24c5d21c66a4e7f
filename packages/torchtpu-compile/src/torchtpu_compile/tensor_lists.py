# SPDX-License-Identifier: Apache-2.0
"""The ``_foreach_*`` ops of tensors of open sizes, from the operator of a single tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torchtpu_core.lowering.table import operator

aten = torch.ops.aten
_PREFIX = "aten::_foreach_"
#: What each entry of a list gets, where that is not the operator of the same name.
_SINGLE: dict[str, Callable[..., Any]] = {
    "clamp_max.List": aten.minimum,
    "clamp_min.List": aten.maximum,
    "max": aten.amax,
    "maximum.Scalar": aten.clamp_min,
    "maximum.ScalarList": aten.clamp_min,
    "minimum.Scalar": aten.clamp_max,
    "minimum.ScalarList": aten.clamp_max,
    "norm.Scalar": lambda x, ord=2, dtype=None: aten.linalg_vector_norm(x, ord, dtype=dtype),
    "zero": aten.zeros_like,
}
#: Their numbers are the entries of a tensor; their sum is of no other op.
_LEFT_WHOLE = ("addcmul.Tensor", "addcdiv.Tensor", "powsum.Scalar")


def decompositions(overloads: Iterable[str]) -> dict[Any, Callable[..., Any]]:
    """Those of the ``_foreach_*`` ops among overload names."""
    names = [name.removeprefix(_PREFIX) for name in overloads if name.startswith(_PREFIX)]
    ops = {name: operator(_PREFIX + name) for name in names if name not in _LEFT_WHOLE}
    return {
        op: _each(op, _SINGLE.get(name) or getattr(aten, name.partition(".")[0]))
        for name, op in ops.items()
        if not op._schema.is_mutable
    }


def _each(op: torch._ops.OpOverload, single: Callable[..., Any]) -> Callable[..., list[Any]]:
    """An op of lists: its arguments that are lists have an entry for each call of `single`."""
    arguments = op._schema.arguments
    listed = {a.name for a in arguments if isinstance(a.type, torch.ListType)}
    keywords = {a.name: a.name for a in arguments if a.kwarg_only}
    if "addc" in op.name():
        keywords |= {"scalars": "value", "value": "value"}

    def run(*args: Any, **kwargs: Any) -> list[Any]:
        given = {a.name: value for a, value in zip(arguments, args, strict=False)} | kwargs
        results = []
        for i in range(len(next(given[name] for name in given if name in listed))):
            entry = {k: v[i] if k in listed else v for k, v in given.items()}
            named = {keywords[k]: entry.pop(k) for k in given if k in keywords}
            results.append(single(*entry.values(), **named))
        return results

    return run
