# SPDX-License-Identifier: Apache-2.0
"""The command `torchtpu ridge`: when is a matmul limited by memory?"""

from __future__ import annotations

import typer
from torchtpu_core.errors import TorchTPUError
from torchtpu_core.hardware.registry import chips


def flops_per_byte(chip: str) -> float:
    """The ridge of a chip's roofline: bfloat16 operations per byte of HBM traffic.

    Raises:
        TargetError: no such chip.
        UnpublishedFigureError: a figure it needs is not published.

    Reference: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
    """
    record = chips().get(chip)
    return record.figure("peak_bf16_flops_per_s") / record.figure("hbm_bytes_per_s")


def ridge(chip: str) -> None:
    """Say at which arithmetic intensity a chip changes from memory-bound to compute-bound."""
    try:
        value = flops_per_byte(chip)
    except TorchTPUError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    typer.echo(f"{chip}: {value:.0f} bf16 flops per byte of HBM traffic")
