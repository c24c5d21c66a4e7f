# SPDX-License-Identifier: Apache-2.0
"""Comparing what the device gives with what the CPU gives, entry by entry.

A value agrees if it is within the tolerance of its dtype, or if it is as close to the
result in double precision as the CPU's own: a badly conditioned sample then asks of the
device what the CPU achieves, not more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchtpu_core.testing import op_rules
from torchtpu_core.testing.tolerance import TOLERANCE

#: The table's tolerances hold for one rounding; an entry is made of several.
_ROUNDINGS = 10
#: How much farther than the CPU's result the device's may be from the exact one.
_CONDITION = 8
_WIDER = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
}

#: Makes the same results in double precision, or raises where the entry cannot.
Exact = Callable[[], Any]


def widened(x: Any) -> Any:
    """A tensor, dtype or record of options in double precision; leaves requiring grad as before."""
    if isinstance(x, torch.dtype):
        return _WIDER.get(x, x)
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return dataclasses.replace(
            x, **{f.name: widened(getattr(x, f.name)) for f in dataclasses.fields(x) if f.init}
        )
    if isinstance(x, torch.Tensor) and x.dtype in _WIDER:
        return x.detach().to(_WIDER[x.dtype]).requires_grad_(x.requires_grad)
    return x


def compare(actual: Any, expected: Any, *, values: bool = True, exact: Exact | None = None) -> None:
    """Raise AssertionError unless the results agree in structure, shape, dtype and value."""
    flat_actual, flat_expected = pytree.tree_leaves(actual), pytree.tree_leaves(expected)
    if len(flat_actual) != len(flat_expected):
        raise AssertionError(f"{len(flat_actual)} results, CPU gives {len(flat_expected)}")
    for position, (a, e) in enumerate(zip(flat_actual, flat_expected, strict=True)):
        if isinstance(e, torch.Tensor):
            _compare_metadata(a, e)
            if values:
                _compare_values(position, a, e, exact)
        elif values and a != e and not (a != a and e != e):
            raise AssertionError(f"{a!r} is not {e!r}")


def _compare_metadata(a: torch.Tensor, e: torch.Tensor) -> None:
    if a.dtype != e.dtype or a.shape != e.shape or a.layout != e.layout:
        raise AssertionError(
            f"{a.dtype} {tuple(a.shape)} {a.layout}, CPU {e.dtype} {tuple(e.shape)} {e.layout}"
        )


def _compare_values(position: int, a: torch.Tensor, e: torch.Tensor, exact: Exact | None) -> None:
    a, e = a.detach().cpu(), e.detach()
    if e.layout != torch.strided:  # which elements are stored is not part of the value
        a, e = a.to_dense(), e.to_dense()
    rtol, atol = TOLERANCE.get(e.dtype, (0.0, 0.0))
    try:
        torch.testing.assert_close(
            a, e, rtol=_ROUNDINGS * rtol, atol=_ROUNDINGS * atol, equal_nan=True
        )
    except AssertionError:
        if exact is None or e.dtype not in _WIDER or not _as_good(position, a, e, exact):
            raise


def _as_good(position: int, a: torch.Tensor, e: torch.Tensor, exact: Exact) -> bool:
    """Whether the device's result is about as far from the exact one as the CPU's."""
    try:
        reference = pytree.tree_leaves(exact())[position].detach()
    except Exception:
        return False  # no such result in double precision: the first verdict stands
    wide = _WIDER[e.dtype]
    if reference.dtype != wide or reference.shape != e.shape:
        return False
    ours, theirs = (a.to(wide) - reference).abs(), (e.to(wide) - reference).abs()
    known = torch.isfinite(reference.to(e.dtype).abs())
    finite = torch.isfinite(a.abs())
    if not torch.equal(finite, torch.isfinite(e.abs())) and not torch.equal(finite, known):
        return False
    known &= finite
    off = theirs[known & torch.isfinite(theirs)]  # CPU's own may be lost where the device's is not
    rtol, atol = TOLERANCE[e.dtype]
    allowed = _ROUNDINGS * (rtol * reference[known].abs() + atol)
    if off.numel():
        allowed = allowed + _CONDITION * off.max()
    return bool((ours[known] <= allowed).all())


def compare_ties(op: Any, actual: tuple[Any, Any], expected: Any) -> None:
    """Compare values and, where indices differ, what they point at.

    Args:
        op: an entry of `op_rules.TIES`.
        actual: the sample on the device and its result.
        expected: the result on the CPU.
    """
    sample, result = actual
    flat_actual, flat_expected = pytree.tree_leaves(result), pytree.tree_leaves(expected)
    if len(flat_expected) > 1:
        compare(flat_actual[0], flat_expected[0])
    if len(flat_expected) == 1 and op_rules.known_name(op) != "argsort":
        compare(flat_actual, flat_expected)
        return
    indices, theirs = flat_actual[-1].detach().cpu(), flat_expected[-1]
    _compare_metadata(indices, theirs)
    place = op_rules.TIES[op_rules.known_name(op)]
    dim = sample.kwargs.get("dim", sample.args[place] if len(sample.args) > place else -1)
    operand = sample.input.detach().cpu()
    keep = indices.ndim == operand.ndim
    ours, others = (i if keep else i.unsqueeze(dim) for i in (indices, theirs))
    if operand.ndim == 0:
        compare(ours, others)
        return
    compare(operand.gather(dim, ours), operand.gather(dim, others))


def compare_tied_gradients(actual: Any, expected: Any) -> None:
    """Gradients agree or, where another of equal elements was meant, hold the same numbers."""
    try:
        compare(actual, expected)
    except AssertionError:
        compare(_ranked(actual), _ranked(expected))


def _ranked(gradients: Any) -> Any:
    return pytree.tree_map_only(
        torch.Tensor, lambda g: g.detach().cpu().flatten().sort().values, gradients
    )
