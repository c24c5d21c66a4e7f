# SPDX-License-Identifier: Apache-2.0
"""What a spec file says of the published figures: how they were counted, and of how many steps."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from torchtpu_core.workloads.microbenchmarks import check_word


class Attention(enum.StrEnum):
    """How a published rate counts the floating-point operations of attention."""

    CAUSAL = "causal"
    FULL = "full"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """How the published figures were counted.

    Attributes:
        attention: causal counts the lower triangle, full all of it, none nothing.
        peak_tflops_per_chip: peak of an MFU, the chip's bf16 peak if 0.
    """

    attention: str = "causal"
    peak_tflops_per_chip: float = 0.0

    def __post_init__(self) -> None:
        check_word("attention", self.attention, [one.value for one in Attention])


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A timed block of steps with an evaluation, as MLPerf logs them.

    Attributes:
        steps: training steps of a block.
        eval_samples: sequences evaluated after a block, forward only.
        blocks: blocks of the whole run.
    """

    steps: int
    eval_samples: int = 0
    blocks: float = 1.0
