# SPDX-License-Identifier: Apache-2.0
"""Types of the compiled simulation; `ici/fluid.py` says what it means."""

from collections.abc import Sequence

from torchtpu_core.ici.fabric import Floats, Ints

def simulate(
    capacity: Floats,
    patterns: Sequence[tuple[Ints, Ints, Ints, Ints, Ints, Ints, Floats]],
    rounds: Sequence[tuple[int, Floats]],
    lanes: Sequence[Sequence[int]],
    start: Ints,
) -> tuple[list[int], int, bool]: ...
