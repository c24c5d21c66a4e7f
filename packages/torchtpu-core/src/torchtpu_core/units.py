# SPDX-License-Identifier: Apache-2.0
"""Units: the only place where bytes and seconds are converted.

``GIB`` is 2**30 and ``GB`` is 10**9, always. The simulator counts time in integer
picoseconds, so that sums do not depend on their order; seconds appear at its edge.
This module holds no hardware figure.
"""

from __future__ import annotations

KIB = 2**10
MIB = 2**20
GIB = 2**30
TIB = 2**40

KB = 10**3
MB = 10**6
GB = 10**9
TB = 10**12

TERA = 10**12

PS_PER_NS = 10**3
PS_PER_US = 10**6
PS_PER_MS = 10**9
PS_PER_S = 10**12

_TIME_STEPS = ((PS_PER_S, "s"), (PS_PER_MS, "ms"), (PS_PER_US, "us"), (PS_PER_NS, "ns"))
_BYTE_STEPS = ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))


def seconds_to_ps(time_s: float) -> int:
    """Seconds as the nearest whole number of picoseconds.

    >>> seconds_to_ps(1.5e-6)
    1500000
    """
    return round(time_s * PS_PER_S)


def ps_to_seconds(time_ps: int) -> float:
    """Picoseconds as seconds."""
    return time_ps / PS_PER_S


def ps_to_ms(time_ps: int) -> float:
    """Picoseconds as milliseconds, the unit of ``Event.elapsed_time``."""
    return time_ps / PS_PER_MS


def ps_to_us(time_ps: int) -> float:
    """Picoseconds as microseconds, the unit of profiler traces."""
    return time_ps / PS_PER_US


def ceil_div(numerator: int, denominator: int) -> int:
    """The quotient of two integers, rounded up, for a positive denominator.

    >>> ceil_div(7, 2), ceil_div(6, 2)
    (4, 3)
    """
    return -(-numerator // denominator)


def format_bytes(size_bytes: int) -> str:
    """A size for people, in binary units.

    >>> format_bytes(16 * GIB), format_bytes(1536), format_bytes(12)
    ('16.00 GiB', '1.50 KiB', '12 B')
    """
    for step, name in _BYTE_STEPS:
        if abs(size_bytes) >= step:
            return f"{size_bytes / step:.2f} {name}"
    return f"{size_bytes} B"


def format_flops(count: float) -> str:
    """Floating-point operations for people.

    >>> format_flops(1.43e13), format_flops(36.3e9), format_flops(0)
    ('14.3 TFLOP', '36.3 GFLOP', '0 FLOP')
    """
    for step, name in ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP")):
        if count >= step:
            return f"{count / step:,.1f} {name}"
    return f"{count:,.0f} FLOP"


def format_seconds(time_s: float) -> str:
    """A time for people.

    >>> format_seconds(0.0012), format_seconds(75.0)
    ('1.20 ms', '75.0 s')
    """
    if time_s >= 10:
        return f"{time_s:,.1f} s"
    if time_s >= 1:
        return f"{time_s:.2f} s"
    return f"{time_s * 1e3:.2f} ms" if time_s >= 1e-3 else f"{time_s * 1e6:.1f} us"


def format_ps(time_ps: int) -> str:
    """A time for people.

    >>> format_ps(2_500_000), format_ps(12)
    ('2.500 us', '12 ps')
    """
    for step, name in _TIME_STEPS:
        if abs(time_ps) >= step:
            return f"{time_ps / step:.3f} {name}"
    return f"{time_ps} ps"
