# SPDX-License-Identifier: Apache-2.0
"""What `import torch` runs: tell `torch.distributed` the names of the backend.

Nothing is loaded until a process group is made, and nothing here may raise: an
exception would break `import torch` for the user.
"""

from __future__ import annotations

import os
import sys
import warnings
from functools import partial
from typing import Any

NAMES = ("tpu_dist", "tpu")


def autoload() -> None:
    """Register the backend, unless torch was built without distributed; never raises."""
    if os.environ.get("TORCH_TPU_DISABLE_AUTOLOAD", "0").lower() not in (
        "",
        "0",
        "false",
        "no",
        "off",
    ):
        return
    try:
        register()
    except Exception as error:
        warnings.warn(
            "torchtpu-distributed could not register its process group "
            f"({type(error).__name__}: {error}). torch works without it; run "
            "`torchtpu doctor` for the reason.",
            RuntimeWarning,
            stacklevel=2,
        )


def register() -> None:
    """Make ``tpu_dist``, also called ``tpu``, the backend of tpu tensors."""
    import torch.distributed

    if not torch.distributed.is_available():
        return
    for name in NAMES:
        if name not in torch.distributed.Backend.backend_list:
            torch.distributed.Backend.register_backend(
                name, partial(_create, name), extended_api=True, devices=["cpu", "tpu"]
            )
    _serve_fake_groups()


def _serve_fake_groups() -> None:
    """Let process groups of the backend ``fake`` take tpu tensors too.

    PyTorch's own list of that backend's devices names no other accelerator; it is written when
    the module below is imported, hence before a user does so. Goes when the list is open.
    """
    from torch.distributed import Backend
    from torch.testing._internal.distributed import fake_pg  # noqa: F401 - writes the list

    devices = Backend.backend_capability[Backend.FAKE]
    if "tpu" not in devices:
        Backend.backend_capability[Backend.FAKE] = [*devices, "tpu"]


def _create(name: str, options: Any, backend_options: Any) -> Any:
    from torchtpu_core.runtime.collector import keep_interrupts, uncollected

    keep_interrupts()
    with uncollected():  # the import of JAX; as core does when it starts
        from torchtpu_distributed.creation import create, serve_whole_group

    backend = create(options, name)
    serve_whole_group(sys._getframe(1).f_locals, backend)
    return backend
