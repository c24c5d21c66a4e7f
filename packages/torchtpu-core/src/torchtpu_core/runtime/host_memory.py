# SPDX-License-Identifier: Apache-2.0
"""glibc's malloc, from which XLA's CPU client takes results and temporaries.

Left to itself malloc maps each block above 32 MiB from the system, and gives it back when it is
freed: the next run of the program takes every page anew. Threads other than the first have heaps
of 64 MiB, which larger blocks cannot use. So freed blocks are kept, in one heap for all threads.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

#: Parameters of `mallopt` in glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8

#: A block of so many bytes is mapped, and given back when it is freed.
_MAPPED_BYTES = 1 << 30
#: So many free bytes at the end of the heap are kept: the most that `mallopt` takes.
_KEPT_BYTES = (1 << 31) - 1

#: Users set malloc up, or put another one in its place, with variables that begin so.
_OF_USERS = ("MALLOC_", "LD_PRELOAD")
_TUNABLES = ("GLIBC_TUNABLES", "glibc.malloc")


def keep_freed_blocks(environment: Mapping[str, str] = os.environ) -> bool:
    """Have malloc keep what is freed; to be called before XLA starts its threads.

    Args:
        environment: of this process.

    Returns:
        Whether it does. Not without glibc, nor if the user has set malloc up.
    """
    variable, prefix = _TUNABLES
    if any(name.startswith(_OF_USERS) for name in environment):
        return False
    if prefix in environment.get(variable, "") or not _is_glibc():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    if not mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES):
        return False  # an old glibc: no more than 32 MiB
    return bool(mallopt(_TRIM_THRESHOLD, _KEPT_BYTES) and mallopt(_ARENA_MAX, 1))


def _is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError):  # not on this system
        return False
