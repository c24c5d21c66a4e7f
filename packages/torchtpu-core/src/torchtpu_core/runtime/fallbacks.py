# SPDX-License-Identifier: Apache-2.0
"""Host fallbacks: warned about once per op, counted, refusable."""

from __future__ import annotations

import logging
from collections import Counter

from torchtpu_core.env_values import Fallback, LogTopic
from torchtpu_core.env_vars import settings
from torchtpu_core.errors import FallbackRefusedError
from torchtpu_core.lowering.table import Kind
from torchtpu_core.runtime import host_only, script_warnings, tables

log = logging.getLogger("torchtpu")

#: How often each overload ran on the host.
counts: Counter[str] = Counter()


class FallbackWarning(UserWarning):
    """An operator ran on the host."""


def reason_of(overload: str) -> str:
    """Why an overload runs on the host; a row's reason holds for its out= and in-place forms."""
    row = tables.current().get(overload) or tables.current().get(_functional(overload))
    if row is not None and row.kind is Kind.HOST:
        return row.reason
    return host_only.reasons.get(overload, "it has no lowering for the device yet")


def _functional(overload: str) -> str:
    """The name without what tells a form: ``aten::geqrf`` of ``aten::geqrf.a``."""
    return overload.partition(".")[0].removesuffix("_")


def on_fallback(overload: str, line: str) -> None:
    """Count a fallback; warn the first time, or refuse.

    Raises:
        FallbackRefusedError: ``TORCH_TPU_FALLBACK=error``.
    """
    policy = settings().fallback
    if policy is Fallback.ERROR:
        raise FallbackRefusedError.for_op(overload, reason_of(overload), line)
    counts[overload] += 1
    if LogTopic.FALLBACKS in settings().log:
        log.warning("<TorchTpu/fallbacks> %s at %s", overload, line or "an unknown line")
    if counts[overload] == 1 and policy is Fallback.WARN:
        where = f" at {line}" if line else ""
        script_warnings.warn_at(
            line,
            f"<TorchTpu/fallback> {overload}{where} runs on the host: {reason_of(overload)}. "
            "Its operands are copied to the CPU and back at each call; "
            "TORCH_TPU_FALLBACK=error makes this an error.",
            FallbackWarning,
        )
