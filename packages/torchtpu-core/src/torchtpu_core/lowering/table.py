# SPDX-License-Identifier: Apache-2.0
"""The rows of a lowering table.

A lowering is a small pure function on JAX values; a row says which overload it
serves and how the recorder must treat that overload. Rows are data: nothing
registers at import, a hook hands the tables over.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch


class Kind(enum.Enum):
    """How an overload runs."""

    NATIVE = "native"
    DECOMPOSITION = "decomposition"
    COMPOSITE = "composite"
    HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
    """One row: an overload and how it runs.

    Attributes:
        overload: full schema name, such as ``aten::add.Tensor``.
        kind: native, decomposition, composite or host fallback.
        function: native: a function on JAX values with the schema's arguments
            (see below); decomposition: a function on torch tensors, traced once
            into the program, or None for the one PyTorch ships; composite: a
            function on torch tensors that runs at every call, for results whose
            shape depends on data; host: None.
        reason: host only: why it cannot run on the device.
        static: names of ``Scalar`` arguments compiled as constants instead of
            passed as run-time operands.
        runtime: names of ``float``, ``int``, ``float[]`` and ``int[]`` arguments
            passed as run-time operands instead of compiled as constants (a
            learning rate).
        special: values of run-time numbers that the function treats apart (a
            square, a root): with one of these the number is a constant.
        random: the function takes ``rng`` (`torchtpu_core.lowering.rng.Rng`)
            as a keyword and the recorder advances the generator.
        mutates: arguments that are written although the schema does not say
            so; their new values follow the returns, in this order. A value of
            an argument that was None is None.
        mutates_if: name of a bool argument; `mutates` holds only if it is true.
        true_sizes: the function may depend on sizes as it likes, so no padding can be kept
            from it: where a compiled graph leaves its sizes open, it is a program of its own
            for each size, between programs that serve many.

    How a native function is called. Positional and keyword-only arguments as in the
    schema, under the schema's names; device, layout, pin_memory, memory_format and
    generator arguments are left out. A tensor is a JAX array, an optional one may be
    None, a list is a list; a ``Scalar`` is a Python number if it equals the schema's
    default or is named in `static`, else a run-time
    `torchtpu_core.lowering.promotion.Scalar` (in compiled graphs always a number);
    a ``Scalar[]`` is a list of such run-time scalars unless it is named in `static`;
    a dtype is a ``torch.dtype``; all else is plain Python. It returns one array, a
    tuple of arrays, or a list for ``Tensor[]``.

    A row for a functional overload also serves the in-place and out= variants of the
    same signature. An overload that exists only in place (``fill_.Scalar``) has its
    own row and returns the new value of every argument the schema marks as written,
    in order. An overload that exists only with ``out=`` (``arange.start_out``) has its
    own row and gets ``out`` as ``jax.ShapeDtypeStruct``.

    The caller casts each result to the dtype that PyTorch's meta kernel states, and
    refuses a result of another shape.
    """

    overload: str
    kind: Kind
    function: Callable[..., Any] | None = None
    reason: str = ""
    static: frozenset[str] = frozenset()
    runtime: frozenset[str] = frozenset()
    special: tuple[float, ...] = ()
    random: bool = False
    mutates: tuple[str, ...] = ()
    mutates_if: str | None = None
    cache_key: str = ""
    true_sizes: bool = False

    def __post_init__(self) -> None:
        if "::" not in self.overload:
            raise ValueError(
                f"{self.overload!r} is not a full overload name: write 'aten::add.Tensor', "
                "with the namespace and, unless it is the default overload, its name."
            )
        if self.kind is Kind.HOST and not self.reason:
            raise ValueError(f"{self.overload}: a host fallback states its reason.")
        if self.kind in (Kind.NATIVE, Kind.COMPOSITE) and self.function is None:
            raise ValueError(f"{self.overload}: a {self.kind.value} lowering needs a function.")


def native(
    overload: str,
    function: Callable[..., Any],
    *,
    static: Iterable[str] = (),
    runtime: Iterable[str] = (),
    special: tuple[float, ...] = (),
    random: bool = False,
    mutates: tuple[str, ...] = (),
    mutates_if: str | None = None,
    cache_key: str = "",
    true_sizes: bool = False,
) -> Lowering:
    """A row for an overload that is one function on JAX values."""
    return Lowering(
        overload=overload,
        kind=Kind.NATIVE,
        function=function,
        static=frozenset(static),
        runtime=frozenset(runtime),
        special=special,
        random=random,
        mutates=mutates,
        mutates_if=mutates_if,
        cache_key=cache_key,
        true_sizes=true_sizes,
    )


def decomposition(overload: str, function: Callable[..., Any] | None = None) -> Lowering:
    """A row for an overload that is made of others, once, when a program is built."""
    return Lowering(overload=overload, kind=Kind.DECOMPOSITION, function=function)


def composite(overload: str, function: Callable[..., Any]) -> Lowering:
    """A row for an overload made of torch ops at every call: its shape depends on data."""
    return Lowering(overload=overload, kind=Kind.COMPOSITE, function=function)


def host(overload: str, reason: str) -> Lowering:
    """A row for an overload that runs on the host, with the reason a user is shown."""
    return Lowering(overload=overload, kind=Kind.HOST, reason=reason)


def operator(overload: str) -> Any:
    """PyTorch's operator of a full name, such as ``aten::add.Tensor``.

    Raises:
        AttributeError: torch has no such overload.
    """
    namespace, _, rest = overload.partition("::")
    name, _, variant = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), variant or "default")
