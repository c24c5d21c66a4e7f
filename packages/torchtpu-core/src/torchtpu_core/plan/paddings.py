# SPDX-License-Identifier: Apache-2.0
"""How many times their elements' bytes shapes take in a TPU's tiles of 8 sublanes and 128 lanes.

Which two dimensions lie along lanes and sublanes is the caller's to say (`plan.tiles`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchtpu_core.lowering.layout import tile_padding
from torchtpu_core.simulator.rates import LANES
from torchtpu_core.units import ceil_div

#: Times its bytes that a picture takes by features and batch before XLA lays it out otherwise: it
#: did so with 43 (4 pictures of 3 channels), and not with 21 (8 of 3).
_MOST_PADDING = 32


def row_padding(shape: Sequence[int]) -> float:
    """Padded over plain elements of rows ``[N, ..., D]``.

    >>> row_padding((65536, 4, 64)), row_padding((65536, 4, 1)), row_padding((65536,))
    (2.0, 32.0, 1.0)
    """
    whole = [size for size in shape if size > 1]
    if len(whole) < 2 or not math.prod(whole):
        return 1.0
    return ceil_div(whole[-1], LANES) * LANES / whole[-1]


def matrix_padding(shape: Sequence[int]) -> float:
    """Padded over plain elements of matrices ``[..., M, N]``; dimensions of one are none.

    >>> matrix_padding((3072, 32, 64)), round(matrix_padding((3072, 49, 49)), 2)
    (2.0, 2.99)
    >>> matrix_padding((256, 4, 256, 32, 1))  # as `torch.einsum` moves what it multiplies
    1.0
    """
    whole = [size for size in shape if size != 1]
    return tile_padding(*(whole if len(whole) > 1 else shape)[-2:])


def image_padding(shape: Sequence[int]) -> float:
    """Padded over plain elements of a batch of feature maps ``[N, C, ...]``.

    >>> image_padding((64, 64, 128, 128)), image_padding((64, 128, 64, 64))
    (2.0, 1.0)
    >>> round(image_padding((128, 3, 128, 128)), 2), image_padding((4, 3, 512, 512))
    (1.33, 1.0)
    """
    padded = tile_padding(*shape[:2])
    # A few pictures of three channels: rows of pixels lie along the lanes instead.
    return padded if padded <= _MOST_PADDING else tile_padding(*shape[-2:])
