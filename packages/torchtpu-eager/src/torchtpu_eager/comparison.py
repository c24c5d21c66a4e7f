# SPDX-License-Identifier: Apache-2.0
"""Running each op on the CPU too, and stopping at the first that differs.

Results are compared by the dtype's tolerance. Two correct float results may differ by
more when an op sums many terms, so one beyond the tolerance is measured against double
precision: it is reported if it is also more than `_SLACK` times worse than the CPU's
own. Random ops are not compared, nor ops with many correct answers.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torchtpu_core.errors import MismatchError
from torchtpu_core.testing.tolerance import TOLERANCE

from torchtpu_eager.operands import (
    Call,
    describe_operands,
    schema_of,
    tensors_in,
    to_host,
    widened,
)

_SLACK = 4.0

#: Ops whose result is not unique, and why.
NOT_UNIQUE: dict[str, str] = {
    "aten::_linalg_eigh": "eigenvectors have a free sign",
    "aten::_linalg_svd": "singular vectors have a free sign",
    "aten::linalg_eig": "eigenvectors have a free phase",
    "aten::linalg_eigvals": "eigenvalues have no order",
    "aten::linalg_qr": "columns have a free sign",
    "aten::geqrf": "reflectors have a free sign",
    "aten::linalg_lstsq": "a rank-deficient problem has many solutions",
}


class NotComparedWarning(UserWarning):
    """An op could not be run on the CPU, so it was not compared."""


@dataclass(slots=True)
class _Reference:
    overload: Any
    args: list[Any]


_warned: set[str] = set()


def before(call: Call) -> None:
    """Copy the operands before the op can overwrite them."""
    overload = _overload(call.op)
    if overload is None or torch.Tag.nondeterministic_seeded in overload.tags:
        return
    if call.op.partition(".")[0].rstrip("_") in NOT_UNIQUE:
        return
    copies: dict[tuple[Any, ...], torch.Tensor] = {}
    call.reference = _Reference(overload, [_host_argument(arg, copies) for arg in call.args])
    for i in call.written:
        call.before[i] = to_host(call.args[i])


def after(call: Call, results: Sequence[Any]) -> None:
    """Run the op on the CPU and compare.

    Raises:
        MismatchError: a result differs beyond the tolerance of its dtype.
    """
    reference: _Reference | None = call.reference
    if reference is None:
        return
    doubles = [_double(arg) for arg in reference.args]
    try:
        expected = _run(call, reference.overload, reference.args)
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
        _warn_once(call, error)
        return
    actual = [*tensors_in(results), *_written(call, call.args)]
    for i, (device, cpu) in enumerate(zip(actual, expected, strict=False)):
        host = to_host(device)
        if host.shape == cpu.shape and host.dtype == cpu.dtype and _close(host, cpu):
            continue
        exact = _exact(call, reference.overload, doubles, i)
        if exact is None or not _no_worse(host, cpu, exact):
            _raise(call, i, host, cpu)


def _overload(op: str) -> Any:
    if schema_of(op) is None:
        return None
    namespace, _, rest = op.partition("::")
    name, _, variant = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), variant or "default")


def _host_argument(value: Any, copies: dict[tuple[Any, ...], torch.Tensor]) -> Any:
    """A host copy; one tensor passed twice stays one tensor."""
    if isinstance(value, torch.Tensor):
        key = (value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
        if value.numel() == 0 or key not in copies:
            copies[key] = to_host(value)
        return copies[key]
    if isinstance(value, (list, tuple)):
        return [_host_argument(item, copies) for item in value]
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _run(call: Call, overload: Any, args: Sequence[Any]) -> list[torch.Tensor]:
    arguments = overload._schema.arguments
    positional = [v for v, a in zip(args, arguments, strict=True) if not a.kwarg_only]
    keywords = {a.name: v for v, a in zip(args, arguments, strict=True) if a.kwarg_only}
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        results = overload(*positional, **keywords)
    return [*tensors_in(results), *_written(call, args)]


def _written(call: Call, args: Sequence[Any]) -> list[torch.Tensor]:
    return [tensor for i in call.written for tensor in tensors_in(args[i])]


def _close(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    rtol, atol = TOLERANCE.get(expected.dtype, (0.0, 0.0))
    return torch.allclose(widened(actual), widened(expected), rtol=rtol, atol=atol, equal_nan=True)


def _double(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        inexact = value.is_floating_point() or value.is_complex()
        return widened(value) if inexact else value.clone()
    if isinstance(value, list):
        return [_double(item) for item in value]
    return value


def _exact(call: Call, overload: Any, doubles: Sequence[Any], i: int) -> torch.Tensor | None:
    """Result `i` in double precision, or None where the op has no such form."""
    try:
        return _run(call, overload, doubles)[i]
    except (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError):
        return None


def _no_worse(actual: torch.Tensor, cpu: torch.Tensor, exact: torch.Tensor) -> bool:
    if actual.shape != exact.shape or not (cpu.is_floating_point() or cpu.is_complex()):
        return False
    rtol, atol = TOLERANCE.get(cpu.dtype, (0.0, 0.0))
    reference = widened(exact)
    off = (widened(actual) - reference).abs()
    cpu_off = (widened(cpu) - reference).abs().max()
    return bool((off <= torch.maximum(_SLACK * cpu_off, atol + rtol * reference.abs())).all())


def _raise(call: Call, i: int, actual: torch.Tensor, expected: torch.Tensor) -> None:
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        detail = (
            f"tpu gives {actual.dtype} {list(actual.shape)}, "
            f"CPU gives {expected.dtype} {list(expected.shape)}"
        )
    else:
        detail = _difference(actual, expected)
    raise MismatchError(
        f"{call.where}: result {i} differs from the CPU's: {detail}. "
        f"Operands:\n{describe_operands(call)}\n"
        "Please report the operator with these operands."
    )


def _difference(actual: torch.Tensor, expected: torch.Tensor) -> str:
    rtol, atol = TOLERANCE.get(expected.dtype, (0.0, 0.0))
    device, cpu = widened(actual), widened(expected)
    off = (device - cpu).abs()
    bad = ~torch.isclose(device, cpu, rtol=rtol, atol=atol, equal_nan=True)
    worst = int(torch.where(bad, off.nan_to_num(float("inf")), -1.0).argmax())
    place = list(map(int, torch.unravel_index(torch.tensor(worst), off.shape)))
    return (
        f"{int(bad.sum())} of {bad.numel()} values beyond rtol={rtol:g}, atol={atol:g}; the "
        f"worst at {place}: tpu {device.flatten()[worst]:g}, CPU {cpu.flatten()[worst]:g}"
    )


def _warn_once(call: Call, error: Exception) -> None:
    if call.op in _warned:
        return
    _warned.add(call.op)
    warnings.warn(
        f"<TorchTpu/debug> {call.where} was not compared with the CPU, which cannot run it: "
        f"{error}",
        NotComparedWarning,
        stacklevel=2,
    )
