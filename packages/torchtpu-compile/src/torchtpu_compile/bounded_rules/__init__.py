# SPDX-License-Identifier: Apache-2.0
"""Rules for ops that could see padding, one file per family, joined into one table."""

from __future__ import annotations

from collections.abc import Mapping

from torchtpu_compile.bounded_call import Rule
from torchtpu_compile.bounded_rules import (
    adaptive_pooling,
    bags,
    batches,
    contractions,
    elementwise,
    factories,
    fft,
    indexing,
    joining,
    linalg,
    losses,
    normalization,
    order_statistics,
    pairs,
    pieces,
    pooling,
    recurrent,
    reductions,
    resizing,
    sampling,
    scattering,
    segments,
    sequences,
    strides,
    views,
)

#: Overload name to rule. Pointwise ops need none.
RULES: Mapping[str, Rule] = {
    **views.RULES,
    **strides.RULES,
    **factories.RULES,
    **fft.RULES,
    **reductions.RULES,
    **contractions.RULES,
    **elementwise.RULES,
    **pieces.RULES,
    **normalization.RULES,
    **indexing.RULES,
    **joining.RULES,
    **sequences.RULES,
    **losses.RULES,
    **pooling.RULES,
    **recurrent.RULES,
    **adaptive_pooling.RULES,
    **linalg.RULES,
    **bags.RULES,
    **order_statistics.RULES,
    **pairs.RULES,
    **batches.RULES,
    **scattering.RULES,
    **sampling.RULES,
    **segments.RULES,
    **resizing.RULES,
}
