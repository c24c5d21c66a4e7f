# SPDX-License-Identifier: Apache-2.0
"""The operands of one op call: finding them, copying them to the host, describing them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

_SHOWN = 8


@dataclass(slots=True)
class Call:
    """One op call that is being watched.

    Attributes:
        op: full overload name, or the name of a custom kernel or compiled graph.
        args: its arguments in schema order.
        line: the user's line.
        names: the arguments' names in the schema; made up for a kernel.
        written: positions of the arguments it writes.
        before: host copies of the written arguments, from before the call.
        reference: what a check keeps between its two calls.
    """

    op: str
    args: Sequence[Any]
    line: str
    names: list[str] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    before: dict[int, Any] = field(default_factory=dict)
    reference: Any = None

    @property
    def where(self) -> str:
        """``aten::log at train.py:12 in step``."""
        return f"{self.op} at {self.line or 'an unknown line'}"


def read_call(op: str, args: Sequence[Any], line: str) -> Call:
    """A call with what its schema says."""
    schema = schema_of(op)
    if schema is None:
        return Call(op, args, line, [f"operand {i}" for i in range(len(args))])
    arguments = schema.arguments
    written = [
        i
        for i, argument in enumerate(arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return Call(op, args, line, [argument.name for argument in arguments], written)


def schema_of(op: str) -> Any:
    """The schema of an overload name, or None for what the dispatcher does not know."""
    name, _, variant = op.partition(".")
    try:
        return torch._C._get_schema(name, variant)
    except RuntimeError:
        return None


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of an argument or a result, lists included."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def numbers_in(value: Any) -> Iterator[float | complex]:
    """The floating point numbers of an argument, lists included."""
    if isinstance(value, (float, complex)):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from numbers_in(item)


def to_host(value: Any) -> Any:
    """The same argument with its tensors copied to the CPU."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, (list, tuple)):
        return [to_host(item) for item in value]
    return value


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """A host tensor in double precision, where arithmetic on every dtype exists."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def describe(value: Any) -> str:
    """Shape, dtype and statistics of an operand, on one line.

    >>> describe(torch.tensor([1.0, float("nan"), 3.0]))
    'float32 [3], min 1, max 3, mean 2, 1 NaN, 0 infinite'
    >>> describe(2.5)
    '2.5'
    """
    if isinstance(value, torch.Tensor):
        return _describe_tensor(value)
    if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
        shown = "; ".join(describe(item) for item in value[:_SHOWN])
        more = f"; and {len(value) - _SHOWN} more" if len(value) > _SHOWN else ""
        return f"[{shown}{more}]"
    return repr(value)


def _describe_tensor(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    head = f"{dtype} {list(tensor.shape)}"
    if tensor.numel() == 0:
        return f"{head}, empty"
    host = widened(to_host(tensor))
    if host.is_complex():
        host = host.abs()
    finite = host[torch.isfinite(host)]
    text = head
    if finite.numel():
        text += f", min {finite.min():g}, max {finite.max():g}, mean {finite.mean():g}"
    if tensor.is_floating_point() or tensor.is_complex():
        text += f", {int(host.isnan().sum())} NaN, {int(host.isinf().sum())} infinite"
    return text


def describe_operands(call: Call) -> str:
    """One line per operand, as it was before the call."""
    lines = []
    for i, (name, value) in enumerate(zip(call.names, call.args, strict=False)):
        if value is not None:
            lines.append(f"  {name}: {describe(call.before.get(i, value))}")
    return "\n".join(lines)
