# SPDX-License-Identifier: Apache-2.0
"""Rules for Fourier transforms along dimensions of fixed size, of open batches.

A transform along an open dimension would be one of another length: it runs at true sizes.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchtpu_compile.bounded import Call, Rule
from torchtpu_compile.bounded_rules.common import dims_of, require_plain
from torchtpu_compile.padded import Padded


def _transform(call: Call) -> Padded:
    x = call.args[0] = call.sizes.compact(call.args[0])
    along = dims_of(x, call.args[1])
    require_plain(call, x, along)
    exprs = call.exprs()
    dims = [call.sizes.dim(exprs[d]) if d in along else x.dims[d] for d in range(len(x.dims))]
    return Padded(call.run(), tuple(dims))


RULES: Mapping[str, Rule] = {f"aten::_fft_{kind}": _transform for kind in ("c2c", "c2r", "r2c")}
