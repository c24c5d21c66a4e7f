# SPDX-License-Identifier: Apache-2.0
"""Features of PyTorch's distributed training by name; each compares the ranks with one process.

A feature returns what the ranks computed and what one CPU process computes from the
whole batch; both are lists of CPU tensors.
"""

from __future__ import annotations

from collections.abc import Callable

import ddp_features
import dtensor_features
import fsdp_features
import pipeline_features
from feature_parts import Pair

FEATURES: dict[str, Callable[[], Pair]] = {
    feature.__name__: feature
    for module in (ddp_features, fsdp_features, dtensor_features, pipeline_features)
    for feature in module.FEATURES
}


def run(name: str) -> Pair:
    """One feature."""
    return FEATURES[name]()
