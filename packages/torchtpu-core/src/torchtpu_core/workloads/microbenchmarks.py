# SPDX-License-Identifier: Apache-2.0
"""What a spec file can say of a single collective, copy, matrix product or attention kernel."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass

from torchtpu_core.errors import did_you_mean

COLLECTIVES = (
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "permute",
    "send",
)

#: Bytes of an element, by the name of its type.
ELEMENT_BYTES = {"bf16": 2, "f32": 4, "int8": 1, "fp8": 1}
#: Other names of types, JAX's and MaxText's.
ALIASES = {"bfloat16": "bf16", "float32": "f32", "fp32": "f32", "fp8_full": "fp8", "": "none"}


def check_word(key: str, value: str, known: Collection[str]) -> None:
    """Refuses a word that is none of the known ones.

    Raises:
        ValueError: it is not; the message names the nearest.
    """
    if value not in known:
        raise ValueError(
            f"{key} = {value!r} is not known.{did_you_mean(value, known)} Use {', '.join(known)}."
        )


def check_counts(**values: int) -> None:
    """Refuses zero where something is counted.

    Raises:
        ValueError: one is 0.
    """
    for key, value in values.items():
        if value < 1:
            raise ValueError(f"{key} = {value}: use 1 or more.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRun:
    """One collective.

    Attributes:
        kind: all_gather, reduce_scatter, all_reduce, all_to_all, broadcast, permute (every
            chip sends to the one `hops` away) or send (one chip does).
        bytes: of the whole array (gathered, or before scattering); for all_to_all, of the
            arrays of all chips together; for permute and send, of one message.
        span: chips along each axis of the group, all of the slice if empty; an axis with
            a trailing ``w`` wraps.
        hops: of a permute or send, along the slice's longest axis.
        devices_share_links: groups of the devices of a chip that use its links at once.
        dcn: the group joins the slices over the data centre network: one chip of each, or
            all chips of `span` in each.
        bandwidth_bytes: bytes that the published bandwidth divides by the time.
    """

    kind: str
    bytes: float
    span: str = ""
    hops: int = 1
    devices_share_links: int = 1
    dcn: bool = False
    bandwidth_bytes: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in COLLECTIVES:
            raise ValueError(
                f"kind = {self.kind!r} is not a collective.{did_you_mean(self.kind, COLLECTIVES)} "
                f"Use {', '.join(COLLECTIVES)}."
            )
        if not re.fullmatch(r"(\d+w?(x\d+w?)*)?", self.span):
            raise ValueError(f"span = {self.span!r} is not of the form 4x8, or 4wx8w if it wraps.")
        if not self.devices_share_links:
            raise ValueError("devices_share_links = 0: at least one group of devices takes part.")

    @property
    def group(self) -> int:
        """Chips of a slice that `span` holds, 1 if it is empty."""
        return math.prod(int(side.removesuffix("w")) for side in self.span.split("x") if side)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A copy within HBM: every byte is read and written.

    Attributes:
        bytes: of the array.
        per_core: one core of the chip copies, with its share of the bandwidth.
    """

    bytes: float
    per_core: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Matmul:
    """A matrix product on one device, ``[m, k] x [k, n]``.

    Attributes:
        dtype: of the operands: bf16, f32, int8 or fp8.
        per_core: one core of the chip computes.
        host_timed: the time includes starting the program from the host.
    """

    m: int
    k: int
    n: int
    dtype: str = "bf16"
    per_core: bool = False
    host_timed: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", ALIASES.get(self.dtype.lower(), self.dtype))
        check_word("dtype", self.dtype, ELEMENT_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRun:
    """A flash attention kernel on one device.

    Attributes:
        batch: sequences.
        heads: query heads.
        sequence: tokens of a sequence.
        head_dim: width of a head.
        kv_heads: key and value heads; as many as query heads if 0.
        causal: a token attends to earlier ones only.
        window: tokens that a token attends to; 0 if all.
        backward: the gradients' kernel, not the forward one.
        fused: one kernel makes all gradients, not one those of queries and one the others.
        per_core: one core of the chip computes.
        host_timed: the time includes starting the program from the host.
    """

    batch: int
    heads: int
    sequence: int
    head_dim: int = 128
    kv_heads: int = 0
    causal: bool = True
    window: int = 0
    backward: bool = False
    fused: bool = True
    per_core: bool = False
    host_timed: bool = False

    def __post_init__(self) -> None:
        check_counts(head_dim=self.head_dim)
