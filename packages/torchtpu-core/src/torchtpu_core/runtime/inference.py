# SPDX-License-Identifier: Apache-2.0
"""Shapes of results where PyTorch has no meta kernel, or one that misstates the layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch

from torchtpu_core.errors import UnsupportedOpError
from torchtpu_core.lowering import dtypes, memory_formats
from torchtpu_core.lowering.interpreter import run_row
from torchtpu_core.lowering.rng import Rng
from torchtpu_core.lowering.table import Lowering, operator
from torchtpu_core.runtime import tables


def _power(stated: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
    """A bool to a bool power is a bool, not an integer."""
    return stated.to(torch.result_type(*args))


def _margin_loss(stated: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
    """The unreduced loss of one sample has the shape of its target."""
    return stated.reshape(args[1].shape) if stated.ndim else stated


def _nansum(stated: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
    """An empty list of dimensions means all of them, as for `sum`."""
    _, dim, keepdim, _ = args
    return torch.sum(stated, [], keepdim, dtype=stated.dtype) if dim == [] else stated


#: What CPU's kernel gives where PyTorch's meta kernel states something else.
CORRECTIONS: dict[str, Callable[[torch.Tensor, Sequence[Any]], torch.Tensor]] = {
    "aten::multi_margin_loss": _margin_loss,
    "aten::nansum": _nansum,
    "aten::pow.Tensor_Scalar": _power,
}

_DROPPED = frozenset(
    {"device", "layout", "pin_memory", "memory_format", "generator", "non_blocking"}
)


def infer_by_lowering(
    row: Lowering, overload: str, args: Sequence[Any]
) -> list[tuple[list[int], list[int], torch.dtype] | None]:
    """(sizes, strides, dtype) of each result of a functional overload, None for no tensor.

    Args:
        row: the overload's row.
        overload: its full name.
        args: arguments in schema order, tensors on the meta device.
    """
    if overload in memory_formats.RULES:
        stated = memory_formats.results(overload, args)
        return [None if t is None else (list(t.shape), list(t.stride()), t.dtype) for t in stated]
    name, _, variant = overload.partition(".")
    schema = torch._C._get_schema(name, variant)
    if overload in CORRECTIONS:
        keywords = {a.name: v for a, v in zip(schema.arguments, args, strict=True) if a.kwarg_only}
        stated = operator(overload)(*args[: len(args) - len(keywords)], **keywords)
        stated = CORRECTIONS[overload](stated, args)
        return [(list(stated.shape), list(stated.stride()), stated.dtype)]
    if any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments):
        return []
    tensors: list[jax.ShapeDtypeStruct] = []
    rebuild = _arguments(schema, args, tensors)

    def function(arrays: list[jax.Array]) -> Any:
        positional, keywords = rebuild(arrays)
        if row.random:
            keywords["rng"] = Rng(jax.numpy.uint64(0), jax.numpy.uint64(0))
        return run_row(row, positional, keywords, tables.current())

    try:
        with jax.enable_x64(True):
            results = jax.eval_shape(function, tensors)
    except (TypeError, NotImplementedError) as error:
        raise UnsupportedOpError.for_op(
            overload, f"PyTorch has no meta kernel for it and its lowering needs values ({error})"
        ) from error
    if row.mutates and isinstance(results, tuple):
        results = results[: len(schema.returns)]  # the new values of arguments follow
    leaves = jax.tree.leaves(results, is_leaf=lambda leaf: leaf is None)
    return [None if leaf is None else _spec(leaf) for leaf in leaves]


def _arguments(schema: Any, args: Sequence[Any], tensors: list[jax.ShapeDtypeStruct]) -> Any:
    plan: list[tuple[Any, Any]] = []

    def place(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device.type == "meta":
            tensors.append(jax.ShapeDtypeStruct(tuple(value.shape), dtypes.to_numpy(value.dtype)))
            index = len(tensors) - 1
            return lambda arrays: arrays[index]
        if isinstance(value, torch.Tensor):
            number = value.item()
            return lambda arrays: number
        if isinstance(value, (list, tuple)):
            parts = [place(v) for v in value]
            return lambda arrays: [part(arrays) for part in parts]
        return lambda arrays: value

    for argument, value in zip(schema.arguments, args, strict=False):
        if argument.name not in _DROPPED:
            plan.append((argument, place(value)))

    def rebuild(arrays: list[jax.Array]) -> tuple[list[Any], dict[str, Any]]:
        positional = [make(arrays) for a, make in plan if not a.kwarg_only]
        return positional, {a.name: make(arrays) for a, make in plan if a.kwarg_only}

    return rebuild


def _spec(leaf: Any) -> tuple[list[int], list[int], torch.dtype]:
    strides: list[int] = []
    step = 1
    for size in reversed(leaf.shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return list(leaf.shape), strides, dtypes.to_torch(leaf.dtype)
