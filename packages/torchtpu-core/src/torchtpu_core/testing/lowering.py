# SPDX-License-Identifier: Apache-2.0
"""Compare one lowering with CPU PyTorch, without a device.

``check("aten::add.Tensor", x, 2.5, table=TABLE)`` runs the overload on CPU, runs the
row of the table under ``jax.jit`` on the same values, and compares values, shapes
and dtypes by the one tolerance table.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torchtpu_core.lowering import checks, dtypes
from torchtpu_core.lowering.promotion import Scalar
from torchtpu_core.lowering.rng import Rng
from torchtpu_core.lowering.table import Lowering, operator
from torchtpu_core.testing.tolerance import TOLERANCE

_DROPPED = {"device", "layout", "pin_memory", "memory_format", "generator"}


def schema(overload: str) -> Any:
    """The torch schema of a full overload name."""
    name, _, variant = overload.partition(".")
    return torch._C._get_schema(name, variant)


def to_jax(x: torch.Tensor) -> jax.Array:
    """A copy of a CPU tensor as a JAX array, of the same dtype (call under x64)."""
    x = x.detach().resolve_conj().resolve_neg().contiguous()
    target = dtypes.to_numpy(x.dtype)
    if x.dtype == torch.bfloat16 or (x.dtype.itemsize == 1 and x.dtype.is_floating_point):
        raw = {1: torch.uint8, 2: torch.int16}[x.dtype.itemsize]
        return jnp.asarray(x.view(raw).numpy().view(target).copy())
    return jnp.asarray(x.numpy().copy())


def to_cpu(x: Any) -> Any:
    """A JAX array (or a nest of them) as CPU tensors."""
    if x is None:
        return None
    if isinstance(x, (list, tuple)):
        return [to_cpu(i) for i in x]
    array = np.array(x)
    target = dtypes.to_torch(array.dtype)
    if target.itemsize <= 2 and target.is_floating_point and target != torch.float16:
        raw = {1: np.uint8, 2: np.int16}[target.itemsize]
        return torch.from_numpy(array.view(raw)).view(target)
    return torch.from_numpy(array)


def pack(value: bool | int | float) -> np.ndarray:
    """The words of a run-time scalar, see `torchtpu_core.lowering.promotion.SCALAR_WORDS`."""
    wide = np.float64(value) if isinstance(value, float) else np.int64(value)
    with np.errstate(over="ignore"):
        single = np.float32(value)
    low_high = wide.reshape(1).view(np.uint32)
    return np.array([low_high[0], low_high[1], single.reshape(1).view(np.uint32)[0]], np.uint32)


def _convert(argument: Any, value: Any, row: Lowering) -> Any:
    kind = str(argument.type)
    if isinstance(value, torch.Tensor):
        return to_jax(value)
    if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
        return [None if v is None else to_jax(v) for v in value]
    is_scalar = kind in ("number", "Optional[number]") or argument.name in row.runtime
    if kind == "List[number]" and argument.name not in row.static:
        return [_scalar(v) for v in value]
    if is_scalar and (value == argument.default_value or value in row.special):
        return value
    if (is_scalar and argument.name not in row.static) or kind in ("Tensor", "Optional[Tensor]"):
        return _scalar(value)
    return value


def _scalar(value: Any) -> Any:
    """A number as a run-time scalar, as a wrapped number is passed; a complex one as it is."""
    if isinstance(value, (bool, int, float)):
        return Scalar(type(value), jnp.asarray(pack(value)))
    return value


def lower(row: Lowering, args: Sequence[Any], kwargs: dict[str, Any], seed: int = 0) -> Any:
    """Run a row of a table under jit on torch arguments, schema defaults filled in."""
    arguments = schema(row.overload).arguments
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    with jax.enable_x64(True):
        for i, argument in enumerate(arguments):
            if argument.name in _DROPPED:
                continue
            if i < len(args):
                value = args[i]
            elif argument.name in kwargs:
                value = kwargs[argument.name]
            else:
                value = argument.default_value
            value = _convert(argument, value, row)
            if argument.kwarg_only:
                keywords[argument.name] = value
            else:
                positional.append(value)
        if row.random:
            keywords["rng"] = Rng(jnp.uint64(seed), jnp.uint64(0))
        leaves, tree = jax.tree.flatten((positional, keywords), is_leaf=lambda x: x is None)
        dynamic = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]

        def run(arrays: list[jax.Array]) -> Any:
            filled = list(leaves)
            for i, array in zip(dynamic, arrays, strict=True):
                filled[i] = array
            args_, kwargs_ = jax.tree.unflatten(tree, filled)
            with checks.collecting() as collected:
                assert row.function is not None
                result = row.function(*args_, **kwargs_)
            failed = checks.failed(collected.conditions) if collected.conditions else []
            messages.extend(collected.messages)
            return result, failed

        messages: list[tuple[type[Exception], str, int]] = []
        result, failed = jax.jit(run)([leaves[i] for i in dynamic])
    for flag, (error, message, _) in zip(failed, messages, strict=True):
        if bool(flag):
            raise error(message)
    return to_cpu(result)


for _type, _fields in ((Scalar, ("words", "single")), (Rng, ("seed", "offset"))):
    _meta = ["kind", "dtype"] if _type is Scalar else ["draws"]
    jax.tree_util.register_dataclass(_type, data_fields=list(_fields), meta_fields=_meta)


def assert_close(actual: Any, expected: Any) -> None:
    """Same structure, shape and dtype; values within the tolerance table; NaN equals NaN."""
    if isinstance(expected, (list, tuple)):
        assert isinstance(actual, (list, tuple)) and len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            assert_close(a, e)
        return
    if not isinstance(expected, torch.Tensor):
        assert actual is None or expected is not None
        return
    rtol, atol = TOLERANCE.get(expected.dtype, (0.0, 0.0))
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True)


def check(overload: str, *args: Any, table: Iterable[Lowering], **kwargs: Any) -> None:
    """Assert that the table's row for `overload` gives what CPU PyTorch gives.

    Where the schema marks arguments as written, their new values are compared too,
    after the returns that are not those arguments themselves.
    """
    row = next(r for r in table if r.overload == overload)
    op = operator(overload)
    args_, kwargs_ = [_cloned(a) for a in args], {k: _cloned(v) for k, v in kwargs.items()}
    expected = op(*args_, **kwargs_)
    written = _written(overload, args_, kwargs_)
    if written:
        returns = expected if isinstance(expected, tuple) else (expected,)
        fresh = [r for r in returns if r is not None and all(r is not w for w in written)]
        expected = tuple(fresh + written) if len(fresh + written) > 1 else written[0]
    actual = lower(row, args, kwargs)
    if isinstance(expected, tuple) and isinstance(actual, list):
        actual = actual[: len(expected)]
    assert_close(actual, expected)


def _written(overload: str, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The values of the arguments that the schema marks as written, in order."""
    found = []
    for i, argument in enumerate(schema(overload).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found.append(args[i] if i < len(args) else kwargs.get(argument.name))
    return found


@functools.singledispatch
def _cloned(value: Any) -> Any:
    return value


@_cloned.register
def _(value: torch.Tensor) -> torch.Tensor:
    return value.clone()


@_cloned.register
def _(value: list) -> list:
    return [_cloned(v) for v in value]
