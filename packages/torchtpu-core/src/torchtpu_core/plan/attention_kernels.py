# SPDX-License-Identifier: Apache-2.0
"""How attention runs: JAX's flash kernels, or products with the scores in HBM.

The rule is that of `lowering.flash_attention`, which does the same for programs that run. The bytes
that move through HBM follow from the kernels' grids: heads are padded to whole lanes, statistics
of the softmax fill a vector for each query, and a block is read again for each block of the other
side. Without the kernels, every pair of query and key has its score in HBM, masked or not.

Legend: D width of a head, padded to lanes where the kernels read it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchtpu_core.lowering.flash_attention import block, pays, whole
from torchtpu_core.simulator import calibration as cal
from torchtpu_core.simulator.rates import LANES
from torchtpu_core.units import ceil_div

#: Float32 in all lanes of a vector, for each query and head.
_STATISTIC_BYTES = LANES * 4
#: Times that the forward kernel's are moved: both are written, and read for the logarithm.
STATISTICS_MOVED = 4


#: Products of the gradient's kernels, by whether queries and whether keys or values want theirs,
#: and those of them that were, or are, also computed elsewhere: a kernel for queries, and one for
#: keys and values, each compute the scores and their gradients, and then their results.
_PRODUCTS = {
    (True, True): (7, 3),
    (True, False): (3, 1),
    (False, True): (4, 1),
    (False, False): (0, 0),
}
#: The same where all gradients come of one computation.
_AT_ONCE = (5, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWork:
    """What one call of attention, or of its gradient, does.

    Attributes:
        scores: pairs of query and key that are computed, over all heads; of a gradient, times its
            products over five.
        again: of a gradient, the part of its products that were, or are, also computed elsewhere.
        head_dims: widths of keys and of values.
        gradient: whether it is the gradient.
        flash: whether the kernels compute it.
        drawn: random numbers of its dropout; the gradient draws them again.
        hbm_bytes: what the kernels move through HBM; without them, what its scores move, wherever
            they are.
    """

    scores: float
    again: float
    head_dims: tuple[int, int]
    gradient: bool
    flash: bool
    drawn: float
    hbm_bytes: float


def attention_of(name: str, args: Sequence[Any]) -> AttentionWork | None:
    """The work of an operator; None if it is no attention."""
    if "scaled_dot_product" not in name or "attention" not in name:
        return None
    gradient = name.endswith("backward")
    query, key, value = args[1:4] if gradient else args[0:3]
    causal = any(argument is True for argument in args[3:])
    lengths = query.shape[-2], key.shape[-2]
    rest = args[4:] if gradient else args[3:]
    drops = any(isinstance(argument, float) and argument > 0.0 for argument in rest)
    flash = not drops and _is_flash(query, key, value, rest)
    pairs = float(math.prod(query.shape[:-1]) * lengths[1])
    products, again = _AT_ONCE
    if flash:
        pairs *= math.prod(map(whole, lengths)) / math.prod(lengths)
        share = _share(lengths, min(1024, lengths[0])) if causal else 1.0
        wanted = _wanted(rest) if gradient else (True, True)
        moved = _kernel_bytes(query, key, causal=causal, gradient=gradient, wanted=wanted)
        products, again = _PRODUCTS[wanted] if gradient else _AT_ONCE
        pairs *= share * products / 5
    else:
        moved = pairs * score_bytes(query.element_size(), gradient=gradient)
    widths = int(query.shape[-1]), int(value.shape[-1])
    return AttentionWork(
        scores=pairs,
        again=again / products if gradient and products else 0.0,
        head_dims=widths,
        gradient=gradient,
        flash=flash,
        drawn=pairs if drops else 0.0,
        hbm_bytes=moved,
    )


def score_bytes(element_bytes: int, *, gradient: bool) -> float:
    """Bytes that move for each score of attention without the kernels.

    Args:
        element_bytes: of the operands.
        gradient: whether it is the gradient, which computes the scores again.

    >>> score_bytes(2, gradient=False), score_bytes(2, gradient=True)
    (12.0, 18.0)
    """
    return float(cal.SCORE_ACCESSES.value * (4 + (element_bytes if gradient else 0)))


def _is_flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rest: Sequence[Any]
) -> bool:
    """Enough queries and keys, heads of one width, and no mask."""
    masked = any(isinstance(argument, torch.Tensor) for argument in rest[:1])
    return (
        not masked
        and query.dtype in (torch.bfloat16, torch.float32)
        and query.shape[-1] == key.shape[-1] == value.shape[-1]
        and pays(query.shape[-2], key.shape[-2])
    )


def _wanted(rest: Sequence[Any]) -> tuple[bool, bool]:
    """Whether a gradient is for queries, and for keys or values; XLA drops the other kernel."""
    masks = (one for one in rest[1:2] if isinstance(one, (list, tuple)) and len(one) >= 3)
    queries, *others = next(masks, (True, True, True))
    return bool(queries), any(others[:2])


def _share(lengths: tuple[int, int], block: int) -> float:
    """Part of the pairs in blocks on or below the diagonal."""
    return (lengths[1] + block) / (2 * lengths[1]) if lengths[0] == lengths[1] else 1.0


def _kernel_bytes(
    query: torch.Tensor,
    key: torch.Tensor,
    *,
    causal: bool,
    gradient: bool,
    wanted: tuple[bool, bool],
) -> float:
    """Bytes of HBM of the kernels and of what prepares their operands."""
    lengths = whole(query.shape[-2]), whole(key.shape[-2])
    rows = math.prod(query.shape[:-2]) * lengths[0]
    width = ceil_div(query.shape[-1], LANES) * LANES * query.element_size()
    ours, theirs = rows * width, rows // lengths[0] * lengths[1] * width  # a key for each head
    statistic = rows * _STATISTIC_BYTES
    block_of_queries, block_of_keys = block(lengths[0]), block(lengths[1])
    share = _share(lengths, block_of_queries) if causal else 1.0
    for_queries = share * lengths[0] / block_of_queries  # times that keys are read
    for_keys = share * lengths[1] / block_of_keys
    repeated = 2 * theirs if query.shape[-3:-2] != key.shape[-3:-2] else 0
    if not gradient:
        return repeated + 2 * ours + 2 * theirs * for_queries + STATISTICS_MOVED * statistic
    of_keys = 4 * theirs + (2 * ours + 3 * statistic) * for_keys
    of_queries = 3 * ours + 3 * statistic + 2 * theirs * for_queries
    # The sum of result and gradient; two statistics are spread over lanes.
    both = repeated + 2 * ours + 2 * statistic
    return both + wanted[0] * of_queries + wanted[1] * of_keys
