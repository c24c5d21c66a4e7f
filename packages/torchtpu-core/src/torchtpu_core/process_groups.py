# SPDX-License-Identifier: Apache-2.0
"""The backend `tpu` of `torch.distributed` where torchtpu-distributed, which brings it, is absent.

Only its names, so that making a process group says what to install.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, NoReturn

from torchtpu_core.errors import MissingExtraError

NAMES = ("tpu_dist", "tpu")


def register() -> None:
    """Register the names, unless their owner is installed or torch has no distributed part."""
    if find_spec("torchtpu_distributed") is not None:
        return
    import torch.distributed as dist

    if not dist.is_available():
        return
    for name in NAMES:
        if name not in dist.Backend.backend_list:
            dist.Backend.register_backend(name, _refuse, extended_api=True, devices=["cpu", "tpu"])


def _refuse(options: Any, backend_options: Any) -> NoReturn:
    raise MissingExtraError.for_extra("distributed", "a process group of tpu tensors")
