# SPDX-License-Identifier: Apache-2.0
"""Huge pages for what XLA's CPU client takes from malloc.

Each run of a program takes its temporaries and results from malloc, and glibc gives large
blocks back to the system, so that every run takes its pages anew. With huge pages, 512
times fewer. A process has to be started with the setting.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

#: glibc's environment variable, and what makes its malloc ask for huge pages.
VARIABLE = "GLIBC_TUNABLES"
SETTING = "glibc.malloc.hugetlb=1"
_OLDEST_GLIBC = (2, 35)
_SYSTEM = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def missing(environment: Mapping[str, str] = os.environ) -> str | None:
    """What `VARIABLE` should be for the next process; None if there is nothing to gain.

    Args:
        environment: of this process.

    Returns:
        The present value with the setting added. None without glibc 2.35, if the system
        always or never uses huge pages, or if the user has set malloc up.
    """
    library, version = platform.libc_ver()
    if library != "glibc" or tuple(int(n) for n in version.split(".")[:2]) < _OLDEST_GLIBC:
        return None
    try:
        chosen = _SYSTEM.read_text()
    except OSError:
        return None
    present = environment.get(VARIABLE, "")
    if "[madvise]" not in chosen or "glibc.malloc" in present or environment.get("LD_PRELOAD"):
        return None
    return ":".join(filter(None, (present, SETTING)))
