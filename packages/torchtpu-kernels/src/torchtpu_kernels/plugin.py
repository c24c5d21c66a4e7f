# SPDX-License-Identifier: Apache-2.0
"""The plugin: the ops of custom kernels, and `torch.tpu.pallas`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from torchtpu_core.hookspecs import hookimpl
from torchtpu_core.lowering.table import Lowering


@hookimpl
def torchtpu_register_lowerings() -> Iterable[Lowering]:
    """The rows of `torchtpu::jax_call` and of ops defined before the device started."""
    from torchtpu_kernels import call_op, rows

    return (*call_op.TABLE, *rows.waiting())


@hookimpl
def torchtpu_register_kernels() -> Iterable[Callable[..., Any]]:
    """Put the module in its place."""
    return (_attach,)


def _attach() -> None:
    import torch

    from torchtpu_kernels import pallas

    torch.tpu.pallas = pallas
    sys.modules.setdefault("torch.tpu.pallas", pallas)
