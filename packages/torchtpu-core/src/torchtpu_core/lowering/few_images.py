# SPDX-License-Identifier: Apache-2.0
"""Batches of few images, of which XLA's TPU compiler makes larger ones for convolutions.

It splits the last dimension into parts, each with what it shares with the next ("space to batch"),
and leaves in parts what elementwise work makes of a convolution's result. That suits statistics of
features, ``[C]``. Those of each image, ``[N, C]``, it writes in the image's shape, in float32, and
moves them to the order of the parts, for the mean, the deviation and their gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import lax

from torchtpu_core.lowering import layout, mxu

#: Parts of the split dimension, and images from which none is split: libtpu split 7, and not 8.
PARTS = 8
#: Dimensions of images and of volumes.
_RANKS = (4, 5)
#: And of waves, which are split alike but otherwise laid out.
_WAVE_RANK = 3


def is_split(shape: Sequence[int]) -> bool:
    """Whether a batch of feature maps ``[N, C, ..., W]`` is split.

    >>> is_split((4, 64, 128, 128)), is_split((8, 64, 128, 128)), is_split((4, 64, 128, 8))
    (True, False, False)
    """
    return len(shape) in _RANKS and shape[0] < PARTS < shape[-1]


def whole(x: jax.Array) -> jax.Array:
    """`(N, C, *S)`, put together of its parts for what needs statistics of each image, or wave.

    Under autocast that is what was cast to float32.
    """
    shape = (*x.shape[:2], 1, x.shape[2]) if x.ndim == _WAVE_RANK else x.shape
    if mxu.lowers_for("tpu") and is_split(shape):
        return lax.optimization_barrier(layout.narrow(x)).astype(x.dtype)
    return x
