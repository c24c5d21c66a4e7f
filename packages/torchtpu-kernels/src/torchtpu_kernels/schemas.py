# SPDX-License-Identifier: Apache-2.0
"""The op schema of a JAX function, from its annotations."""

from __future__ import annotations

import enum
import inspect
import numbers
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import torch

from torchtpu_kernels.errors import KernelDefinitionError

_TENSORS = (jax.Array, torch.Tensor)
_PLAIN = {int: "int", float: "float", bool: "bool", str: "str", torch.dtype: "ScalarType"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSchema:
    """What the annotations of a function say.

    Attributes:
        text: arguments and returns in PyTorch's schema language.
        positional: names of parameters that may be passed by position, in order.
        tensors: names of parameters that hold tensors.
        static: names of the others.
        returns_list: whether the op returns ``Tensor[]``.
    """

    text: str
    positional: tuple[str, ...]
    tensors: frozenset[str]
    static: tuple[str, ...]
    returns_list: bool


def schema_of(name: str, function: Callable[..., Any]) -> OpSchema:
    """Read the annotations of a function.

    Tensor parameters are annotated ``jax.Array`` or ``torch.Tensor`` (optional, or in a
    list); all else is static: int, float, bool, str, Literal, Enum, torch.dtype, lists of
    numbers. Returns are tensors: one, a fixed tuple, or a list.

    Raises:
        KernelDefinitionError: an annotation is missing or has no counterpart.
    """
    signature = inspect.signature(function)
    hints = _hints(function)
    bound = set(getattr(function, "keywords", ()))  # of functools.partial
    parts: list[str] = []
    tensors: set[str] = set()
    names: list[str] = []
    keyword_only: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.name in bound:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise KernelDefinitionError(
                f"op {name!r}: *{parameter.name} has no place in an op's schema. "
                "List its parameters."
            )
        if parameter.name not in hints:
            raise KernelDefinitionError(
                f"op {name!r}: parameter {parameter.name!r} has no annotation. Annotate tensors as "
                "jax.Array and constants as int, float, bool or str."
            )
        kind = _type(name, parameter.name, hints[parameter.name])
        if kind.startswith("Tensor"):
            tensors.add(parameter.name)
        if parameter.kind is parameter.KEYWORD_ONLY and kind.startswith("Tensor"):
            raise KernelDefinitionError(
                f"op {name!r}: PyTorch ops take no keyword-only tensors; make {parameter.name!r} "
                "positional."
            )
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            parts.append("*")
        (keyword_only if parameter.kind is parameter.KEYWORD_ONLY else names).append(parameter.name)
        parts.append(f"{kind} {parameter.name}{_default(name, parameter)}")
    returns = _returns(name, hints.get("return"))
    return OpSchema(
        text=f"({', '.join(parts)}) -> {returns}",
        positional=tuple(names),
        tensors=frozenset(tensors),
        static=tuple(n for n in (*names, *keyword_only) if n not in tensors),
        returns_list=returns == "Tensor[]",
    )


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    inner = getattr(function, "func", function)
    inner = inspect.unwrap(inner)
    return typing.get_type_hints(inner)


def _default(name: str, parameter: inspect.Parameter) -> str:
    value = parameter.default
    if value is parameter.empty:
        return ""
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, str):
        return f'="{value}"'
    if value is None or isinstance(value, (bool, int, float)):
        return f"={value}"
    if isinstance(value, (list, tuple)) and all(isinstance(v, (int, float, bool)) for v in value):
        return f"=[{', '.join(str(v) for v in value)}]"
    raise KernelDefinitionError(
        f"op {name!r}: default {value!r} of {parameter.name!r} cannot be written in an op's "
        "schema. Use None and fill it in inside the function."
    )


def _type(name: str, parameter: str, hint: Any) -> str:
    if hint in _TENSORS:
        return "Tensor"
    if hint in _PLAIN:
        return _PLAIN[hint]
    if hint is numbers.Number:
        return "float"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _of_values(name, parameter, [member.value for member in hint])
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return _of_values(name, parameter, inner)
    if origin in (typing.Union, types.UnionType) and type(None) in inner:
        rest = [i for i in inner if i is not type(None)]
        if len(rest) == 1:
            return _type(name, parameter, rest[0]) + "?"
    if origin in (list, tuple, Sequence) and inner:
        elements = {i for i in inner if i is not Ellipsis}
        if len(elements) == 1:
            return _type(name, parameter, elements.pop()) + "[]"
    raise KernelDefinitionError(
        f"op {name!r}: annotation {hint!r} of {parameter!r} has no counterpart in an op's "
        "schema. Use jax.Array, Optional or list of it, int, float, bool, str, Literal, Enum or "
        "torch.dtype."
    )


def _of_values(name: str, parameter: str, values: Sequence[Any]) -> str:
    kinds = {type(v) for v in values}
    if len(kinds) == 1 and (kind := kinds.pop()) in _PLAIN:
        return _PLAIN[kind]
    raise KernelDefinitionError(
        f"op {name!r}: the values of {parameter!r} are of different types ({list(values)!r})."
    )


def _returns(name: str, hint: Any) -> str:
    if hint in _TENSORS:
        return "Tensor"
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and inner and all(i in _TENSORS for i in inner):
        return f"({', '.join(['Tensor'] * len(inner))})"
    if origin in (list, Sequence) and inner and inner[0] in _TENSORS:
        return "Tensor[]"
    raise KernelDefinitionError(
        f"op {name!r}: the function returns {hint!r}. Annotate the result as jax.Array, a tuple of "
        "fixed length of jax.Array, or list[jax.Array]."
    )
