# SPDX-License-Identifier: Apache-2.0
"""What is predicted of a training step, and the rates that follow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrediction:
    """A simulated step.

    Attributes:
        step_s: seconds of the step.
        parts: seconds by what they are spent on; they add to `step_s`.
        hidden: seconds of communication behind compute, by axis.
        chips: chips of all slices.
        tokens: of the step, all chips together.
        flops_per_token: model operations by the published way of counting.
        peak_flops_per_s: of a chip.
        hardware_flops: operations that a chip really performs in the step.
        sent_bytes: that enter a chip over ICI, by axis.
    """

    step_s: float
    parts: dict[str, float]
    hidden: dict[str, float]
    chips: int
    tokens: float
    flops_per_token: float
    peak_flops_per_s: float
    hardware_flops: float
    sent_bytes: dict[str, float]

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of all chips."""
        return self.tokens / self.step_s

    @property
    def tflops_per_chip(self) -> float:
        """Model TFLOP/s of a chip, as published rates count them."""
        return self.flops_per_token * self.tokens_per_s / self.chips / 1e12

    @property
    def mfu(self) -> float:
        """Model operations over the peak's."""
        return self.tflops_per_chip * 1e12 / self.peak_flops_per_s

    @property
    def hfu(self) -> float:
        """Operations performed, recomputed ones included, over the peak's."""
        return self.hardware_flops / self.step_s / self.peak_flops_per_s
