# SPDX-License-Identifier: Apache-2.0
"""Running table rows on JAX values: one row, or a decomposition made of other rows.

A decomposition is PyTorch code. It is run once, while a program is built, on meta
tensors under a dispatch mode; every aten op it makes goes through the tables again,
and each meta tensor is paired with the JAX value it stands for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from torchtpu_core.errors import HostOnlyError, LoweringTableError, UnsupportedOpError
from torchtpu_core.lowering import dtypes, images, mxu, tpu_limits
from torchtpu_core.lowering.promotion import Scalar, cast
from torchtpu_core.lowering.rng import Rng
from torchtpu_core.lowering.table import Kind, Lowering, operator

Tables = Mapping[str, Lowering]

_DROPPED = frozenset(
    {"device", "layout", "pin_memory", "memory_format", "generator", "non_blocking"}
)


def run_row(row: Lowering, args: Sequence[Any], kwargs: Mapping[str, Any], tables: Tables) -> Any:
    """The result of one row on JAX values, arguments already in the row's convention."""
    if row.kind is Kind.DECOMPOSITION:
        return _run_decomposition(row, args, kwargs, tables)
    assert row.function is not None
    result = row.function(*args, **kwargs)
    if mxu.lowers_for("tpu"):
        _follow_images(result, (args, kwargs))
    return result


def _follow_images(result: Any, arguments: Any) -> None:
    """Note which results lie as images do."""
    made = [one for one in jax.tree.leaves(result) if isinstance(one, jax.Array)]
    for read in jax.tree.leaves(arguments):
        if isinstance(read, jax.Array) and images.features_of(read) is not None:
            for one in made:
                images.follow(one, read)


def run_overload(
    op: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tables: Tables,
    rng: Rng | None = None,
) -> Any:
    """The result of an overload called with JAX values and plain numbers in its schema's form.

    Raises:
        UnsupportedOpError: no table has a device row for it.
        HostOnlyError: XLA's TPU compiler, for which it is lowered, does not take its operands.
        LoweringTableError: it is random and there is no `rng`.
    """
    name = overload_name(op)
    row = tables.get(name)
    if row is None or row.kind in (Kind.HOST, Kind.COMPOSITE):
        why = "it has no lowering" if row is None else row.reason or "its shape depends on data"
        raise UnsupportedOpError.for_op(name, why)
    if mxu.lowers_for("tpu") and (limit := _limit(name, (args, kwargs))) is not None:
        raise HostOnlyError.for_op(name, limit)
    positional, keywords = [], {}
    for i, argument in enumerate(op._schema.arguments):
        if argument.name in _DROPPED:
            continue
        default = kwargs.get(argument.name, argument.default_value)
        value = args[i] if i < len(args) else default
        if argument.kwarg_only:
            keywords[argument.name] = value
        else:
            positional.append(value)
    if row.random:
        if rng is None:
            raise LoweringTableError(
                f"{name} draws random numbers inside an operator whose row is not marked random: "
                "it would draw the same ones at every call. Mark that row with random=True."
            )
        keywords["rng"] = rng
    return run_row(row, positional, keywords, tables)


def _limit(name: str, arguments: Any) -> str | None:
    """Why XLA's TPU compiler does not take a call with such arrays."""
    arrays = [v for v in jax.tree.leaves(arguments) if isinstance(v, jax.Array)]
    return tpu_limits.reason(name, [dtypes.to_torch(array.dtype) for array in arrays])


def overload_name(op: torch._ops.OpOverload) -> str:
    """``aten::add.Tensor`` for an overload object; the default overload has no suffix."""
    schema = op._schema
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


class _Tracing(TorchDispatchMode):  # type: ignore[misc]
    """Pairs each meta tensor of a decomposition with its JAX value."""

    def __init__(self, tables: Tables, rng: Rng | None) -> None:
        super().__init__()
        self.tables = tables
        self.rng = rng
        self.values: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def meta(self, value: jax.Array) -> torch.Tensor:
        """A meta tensor that stands for `value`."""
        tensor = torch.empty(value.shape, dtype=dtypes.to_torch(value.dtype), device="meta")
        self.values[tensor] = value
        return tensor

    def value(self, x: Any) -> Any:
        """The JAX value of a meta tensor; anything else as it is."""
        if isinstance(x, torch.Tensor):
            if x not in self.values and x.device.type == "cpu" and x.ndim == 0:
                return x.item()
            return self.values[x]
        if isinstance(x, (list, tuple)):
            return [self.value(i) for i in x]
        return x

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Lower the op that the decomposition called and pair its results."""
        kwargs = kwargs or {}
        functional, target = _functional(func)
        results = func(*args, **kwargs) if target is None else args[0]
        values = run_overload(
            functional,
            [self.value(a) for a in args],
            {k: self.value(v) for k, v in kwargs.items()},
            self.tables,
            self.rng,
        )
        self._pair(results, values)
        return results

    def _pair(self, results: Any, values: Any) -> None:
        if isinstance(results, torch.Tensor):
            value = values[0] if isinstance(values, (list, tuple)) else values
            value = cast(value, dtypes.to_numpy(results.dtype))
            self.values[results] = jnp.broadcast_to(value, tuple(results.shape))
            return
        for result, value in zip(results, values, strict=False):
            if result is not None:
                self._pair(result, value)


def _functional(func: torch._ops.OpOverload) -> tuple[torch._ops.OpOverload, str | None]:
    """The functional form of an in-place overload, and whether it was in place."""
    name = func._schema.name
    if not name.endswith("_") or name.endswith("__"):
        return func, None
    namespace, _, base = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), base.removesuffix("_"), None)
    overload = func._schema.overload_name or "default"
    if packet is None or overload not in packet.overloads():
        return func, "self"
    return getattr(packet, overload), "self"


def _run_decomposition(
    row: Lowering, args: Sequence[Any], kwargs: Mapping[str, Any], tables: Tables
) -> Any:
    function = row.function or _pytorch_decomposition(row.overload)
    keywords = dict(kwargs)
    rng = keywords.pop("rng", None)
    mode = _Tracing(tables, rng)

    def to_meta(x: Any) -> Any:
        if isinstance(x, Scalar):
            return mode.meta(x.to(_scalar_dtype(x)))
        if isinstance(x, jax.Array):
            return mode.meta(x)
        if isinstance(x, (list, tuple)) and any(isinstance(i, jax.Array) for i in x):
            return [to_meta(i) for i in x]
        return x

    with mode:
        results = function(
            *[to_meta(a) for a in args], **{k: to_meta(v) for k, v in keywords.items()}
        )
        if isinstance(results, torch.Tensor):
            return mode.value(results)
        return tuple(mode.value(r) for r in results)


def _scalar_dtype(scalar: Scalar) -> Any:
    if scalar.dtype is not None:
        return dtypes.to_numpy(scalar.dtype)
    return {bool: "bool", int: "int64", float: dtypes.default_float()}[scalar.kind]


def _pytorch_decomposition(overload: str) -> Any:
    from torch._decomp import decomposition_table

    try:
        return decomposition_table[operator(overload)]
    except KeyError:
        raise LoweringTableError(
            f"{overload} is listed as a decomposition, but PyTorch {torch.__version__} has none."
        ) from None
