# SPDX-License-Identifier: Apache-2.0
"""Finding the op that made the first NaN or infinity.

A NaN in a result is an error unless a number argument is NaN: an earlier op would have
been stopped, so one among the operands came in from outside, and the message says so.
An infinity is an error only if no operand and no number argument is infinite: masks of
``-inf`` are ordinary. This check does not look at integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torchtpu_core.errors import NonFiniteError

from torchtpu_eager.operands import (
    Call,
    describe_operands,
    numbers_in,
    tensors_in,
    to_host,
    widened,
)


def before(call: Call) -> None:
    """Keep what the op is about to overwrite."""
    for i in call.written:
        if i not in call.before:
            call.before[i] = to_host(call.args[i])


def after(call: Call, results: Sequence[Any]) -> None:
    """Look at the results.

    Raises:
        NonFiniteError: one has a NaN or an infinity that the operands do not explain.
    """
    produced = [*results, *(call.args[i] for i in call.written)]
    for tensor in tensors_in(produced):
        if not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        host = widened(to_host(tensor))
        if not bool(torch.isfinite(host).all()):
            _judge(call, host)


def _judge(call: Call, result: torch.Tensor) -> None:
    nan_in, inf_in = _in_operands(call)
    numbers = [n for arg in call.args for n in numbers_in(arg)]
    nan_asked = any(n != n for n in numbers)
    inf_asked = any(isinstance(n, float) and math.isinf(n) for n in numbers)
    nans, infs = result.isnan(), result.isinf()
    if bool(nans.any()) and not nan_asked:
        _raise(call, nans, infs, nans, "NaN", nan_in)
    if bool(infs.any()) and not (inf_in or inf_asked):
        _raise(call, nans, infs, infs, "infinite", [])


def _in_operands(call: Call) -> tuple[list[str], list[str]]:
    """Names of the operands that had NaN, and of those that had infinities."""
    nan, inf = [], []
    for i, (name, value) in enumerate(zip(call.names, call.args, strict=False)):
        for tensor in tensors_in(call.before.get(i, value)):
            if tensor.is_floating_point() or tensor.is_complex():
                host = widened(to_host(tensor))
                nan += [name] if bool(host.isnan().any()) else []
                inf += [name] if bool(host.isinf().any()) else []
    return nan, inf


def _raise(
    call: Call,
    nans: torch.Tensor,
    infs: torch.Tensor,
    bad: torch.Tensor,
    kind: str,
    came_in: list[str],
) -> None:
    first = bad.nonzero()[0].tolist()
    counts = f"{int(nans.sum())} NaN and {int(infs.sum())} infinite of {bad.numel()} values"
    origin = (
        f"NaN was already in {', '.join(dict.fromkeys(came_in))}, which was made outside "
        "torch.tpu.debug()"
        if came_in
        else f"no operand was {kind}"
    )
    raise NonFiniteError(
        f"{call.where} returned {counts}; the first {kind} one is at {first}, and {origin}. "
        f"Operands:\n{describe_operands(call)}\n"
        "Change the operation for such operands, or leave this check out with "
        "torch.tpu.debug(nonfinite=False)."
    )
