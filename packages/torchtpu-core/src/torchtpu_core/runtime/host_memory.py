# SPDX-License-Identifier: Apache-2.0
"""Keeping freed memory between programs that run on the host.

XLA's CPU client takes the temporaries and results of each run from malloc and gives them
back. glibc returns such blocks to the system, so that every step takes its pages anew: a
training step of a 4-layer GPT spends a quarter of its time in page faults.
"""

from __future__ import annotations

import ctypes
import os
import sys

from torchtpu_core.env_vars import settings
from torchtpu_core.units import GIB

#: Parameters of mallopt(3), from glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
#: At most this, and at most this part of the machine's memory, is kept per process.
_MOST_BYTES, _PART = 1 * GIB, 16
#: Variables by which a user has chosen how malloc works.
_CHOICES = ("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "LD_PRELOAD")


def keep_freed() -> bool:
    """Let malloc keep large blocks that are freed, for the rest of the process.

    One arena serves all threads, because blocks of a thread's own arena are returned
    whatever their size. Nothing changes without glibc, if the user has set malloc up by
    the environment, or under ``TORCH_TPU_KEEP_FREED_MEMORY=0``.

    Returns:
        Whether malloc was changed.
    """
    if not sys.platform.startswith("linux") or not settings().keep_freed_memory or _is_chosen():
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # another C library
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    kept = min(_MOST_BYTES, memory // _PART)
    wanted = ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, kept), (_TRIM_THRESHOLD, kept))
    return all(mallopt(parameter, value) for parameter, value in wanted)


def _is_chosen() -> bool:
    tuned = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    return tuned or any(os.environ.get(name) for name in _CHOICES)
