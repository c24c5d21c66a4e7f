# SPDX-License-Identifier: Apache-2.0
"""Stride, padding, dilation and groups of a convolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """A forward convolution, one entry per spatial dimension; padding is (before, after)."""

    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int


def full(values: Sequence[int], spatial: int) -> tuple[int, ...]:
    """One value per spatial dimension; a single one serves all."""
    return tuple(values) * spatial if len(values) == 1 else tuple(values)


def geometry_of(
    spatial: int,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Geometry:
    """The geometry of an operator's arguments, whose single numbers serve all dimensions."""
    return Geometry(
        stride=full(stride, spatial),
        padding=tuple((p, p) for p in full(padding, spatial)),
        dilation=full(dilation, spatial),
        groups=groups,
    )
