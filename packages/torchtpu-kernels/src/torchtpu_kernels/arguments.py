# SPDX-License-Identifier: Apache-2.0
"""The arguments of a kernel call, split into tensors and what is compiled in."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torchtpu_core.lowering import dtypes

from torchtpu_kernels.errors import KernelArgumentError, KernelDefinitionError


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a tensor of the call goes: the position in the flat list of operands."""

    index: int


@dataclass(frozen=True, slots=True)
class Static:
    """A value that is compiled in."""

    value: Any


class Parameters:
    """The parameters of a kernel's function.

    Args:
        name: of the kernel, for errors.
        function: the JAX callable.
        static_argnums: positions of compile-time constants.
        static_argnames: names of compile-time constants.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        static_argnums: int | Sequence[int] | None,
        static_argnames: str | Sequence[str] | None,
    ) -> None:
        self.name = name
        self.signature = _signature(function)
        numbers = _as_tuple(static_argnums)
        self.static = frozenset(_as_tuple(static_argnames)) | {
            self._name_at(i, numbers) for i in numbers
        }
        self._check_names()

    def _name_at(self, index: int, numbers: Sequence[int]) -> str:
        if self.signature is None:
            return f"#{index}"
        names = list(self.signature.parameters)
        if not -len(names) <= index < len(names):
            raise KernelDefinitionError(
                f"kernel {self.name!r}: static_argnums={tuple(numbers)} names argument {index}, "
                f"but the function has {len(names)}: {', '.join(names)}."
            )
        return names[index]

    def _check_names(self) -> None:
        if self.signature is None:
            return
        unknown = {n for n in self.static if not n.startswith("#")} - set(self.signature.parameters)
        takes_any = any(
            p.kind is inspect.Parameter.VAR_KEYWORD for p in self.signature.parameters.values()
        )
        if unknown and not takes_any:
            raise KernelDefinitionError(
                f"kernel {self.name!r}: static_argnames names {sorted(unknown)}, but the "
                f"function's parameters are {', '.join(self.signature.parameters)}."
            )

    def bind(
        self, args: Sequence[Any], kwargs: dict[str, Any], kind: type = torch.Tensor
    ) -> tuple[list[Any], Any, list[int]]:
        """Split a call.

        Args:
            args: of the call.
            kwargs: of the call.
            kind: what an operand is: a tensor, or an array while a program is traced.

        Returns:
            The tensors, flat; a hashable plan to rebuild the arguments; and for each
            tensor the position of the argument it came from.

        Raises:
            KernelArgumentError: an argument is neither static nor made of tensors.
        """
        positional, keywords = self._normalised(args, kwargs)
        tensors: list[Any] = []
        owners: list[int] = []

        def place(value: Any, owner: int, label: str) -> Any:
            if isinstance(value, kind):
                tensors.append(value)
                owners.append(owner)
                return Slot(len(tensors) - 1)
            if value is None:
                return None
            if isinstance(value, (list, tuple)):
                return (type(value).__name__, *(place(v, owner, label) for v in value))
            raise KernelArgumentError(
                f"kernel {self.name!r}: argument {label} is {type(value).__name__} {value!r}, not "
                "a tensor. Tensors, None and lists of them are operands; name anything else in "
                "static_argnums or static_argnames."
            )

        plan: list[tuple[str | None, Any]] = []
        for index, (label, value) in enumerate(positional):
            static = label in self.static
            plan.append(
                (None, self._constant(label, value) if static else place(value, index, label))
            )
        for index, (label, value) in enumerate(keywords.items(), len(positional)):
            static = label in self.static
            plan.append(
                (label, self._constant(label, value) if static else place(value, index, label))
            )
        return tensors, tuple(plan), owners

    def _normalised(
        self, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[list[tuple[str, Any]], dict[str, Any]]:
        """Arguments by name, positional ones first; defaults of static arguments filled in."""
        if self.signature is None:
            return [(f"#{i}", a) for i, a in enumerate(args)], kwargs
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise KernelArgumentError(f"kernel {self.name!r}: {error}.") from error
        names = list(self.signature.parameters)
        positional: list[tuple[str, Any]] = []
        for i, value in enumerate(bound.args):
            positional.append((names[min(i, len(names) - 1)], value))
        return positional, bound.kwargs

    def _constant(self, label: str, value: Any) -> Static:
        if isinstance(value, torch.Tensor):
            raise KernelDefinitionError(
                f"kernel {self.name!r}: argument {label} is static, that is compiled in, but a "
                "tensor was passed. Take it out of static_argnums or static_argnames."
            )
        parameter = self.signature.parameters.get(label) if self.signature is not None else None
        annotation = parameter.annotation if parameter is not None else None
        return Static(_plain(value, annotation))


def rebuild(plan: Any, arrays: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The function's arguments, from a plan of `Parameters.bind` and the operands."""

    def value_of(item: Any) -> Any:
        if isinstance(item, Slot):
            return arrays[item.index]
        if isinstance(item, Static):
            return item.value
        if isinstance(item, tuple):
            values = [value_of(i) for i in item[1:]]
            return values if item[0] == "list" else tuple(values)
        return item

    args = [value_of(item) for label, item in plan if label is None]
    return args, {label: value_of(item) for label, item in plan if label is not None}


def plan_key(plan: Any) -> Any:
    """A hashable stand-in for a plan; constants that cannot be hashed count by their text."""
    try:
        hash(plan)
    except TypeError:
        return str(plan)
    return plan, str(plan)  # 1, 1.0 and True are equal, but not the same constant


def _plain(value: Any, annotation: Any) -> Any:
    """A static value as JAX code expects it: NumPy dtypes, tuples, members of an enum."""
    if isinstance(value, torch.dtype):
        return dtypes.to_numpy(value)
    if isinstance(value, list):
        return tuple(_plain(v, None) for v in value)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return value if isinstance(value, annotation) else annotation(value)
    return value


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _as_tuple(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, (int, str)) else tuple(value)
