# SPDX-License-Identifier: Apache-2.0
"""Rules for operators that treat each member of a batch by itself.

Open batches are untouched by them; a gradient that sums over the batch finds zeros in the
padding. Kinds of resizing that are not here are taken apart into lookups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import sympy

from torchtpu_compile.aligned import align
from torchtpu_compile.bounded_call import Call, Rule
from torchtpu_compile.bounded_rules.common import refuse, require_plain
from torchtpu_compile.padded import Padded
from torchtpu_compile.symbols import is_static


def _by_member(lead: int, *, is_backward: bool) -> Rule:
    """A rule for operands and results whose first `lead` dimensions may be open."""

    def result(call: Call, value: jax.Array | None, exprs: Sequence[sympy.Expr]) -> Padded | None:
        if not all(map(is_static, exprs[lead:])):  # a padded size would change every element
            raise refuse(call, "makes a result of open size")
        return None if value is None else Padded(value, tuple(call.sizes.dim(e) for e in exprs))

    def rule(call: Call) -> Any:
        places = [i for i, value in enumerate(call.args) if isinstance(value, Padded)]
        operands = align(call.sizes, [call.sizes.compact(call.args[i]) for i in places])
        for i, x in zip(places, operands, strict=True):
            require_plain(call, x, range(lead, len(x.dims)))
            call.args[i] = call.sizes.filled(x, 0) if is_backward else x
        values = call.run()
        if not isinstance(call.node.meta["val"], (list, tuple)):
            return result(call, values, call.exprs())
        return [None if v is None else result(call, v, call.exprs(i)) for i, v in enumerate(values)]

    return rule


_BY_FIRST = (
    "_thnn_fused_lstm_cell",
    "_thnn_fused_lstm_cell_backward_impl",
    "_thnn_fused_gru_cell",
    "_thnn_fused_gru_cell_backward",
)
_BY_FIRST_TWO = tuple(
    f"_upsample_{kind}2d_aa{suffix}"
    for kind in ("bilinear", "bicubic", "lanczos")
    for suffix in ("", "_backward")
)

RULES: Mapping[str, Rule] = {
    f"aten::{name}": _by_member(lead, is_backward="_backward" in name)
    for names, lead in ((_BY_FIRST, 1), (_BY_FIRST_TWO, 2))
    for name in names
}
