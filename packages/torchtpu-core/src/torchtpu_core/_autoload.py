# SPDX-License-Identifier: Apache-2.0
"""What `import torch` runs: register the device, import neither JAX nor plugins.

The entry point names a function of this submodule, so that importing
`torchtpu_core` before torch works too. An exception here would break `import torch`
for the user, so there is none: a failure is kept and raised at the first use of
`torch.tpu`.
"""

from __future__ import annotations

import sys
import types
import warnings

_registered = False


def autoload() -> None:
    """Register the device `tpu` with torch, once; never raises."""
    try:
        from torchtpu_core import env_vars

        if not env_vars.read("TORCH_TPU_DISABLE_AUTOLOAD"):
            register()
    except Exception as error:
        warnings.warn(
            f"torchtpu could not register device 'tpu' ({type(error).__name__}: {error}). "
            "torch works without it; run `torchtpu doctor` for the reason.",
            RuntimeWarning,
            stacklevel=2,
        )


def register() -> None:
    """Register the device `tpu`: its name, guard, hooks, and the module `torch.tpu`."""
    global _registered
    if _registered:
        return
    import torch

    if torch._C._get_privateuse1_backend_name() not in ("privateuseone", "tpu"):
        raise RuntimeError(
            "another PrivateUse1 backend, "
            f"{torch._C._get_privateuse1_backend_name()!r}, is registered in this process; "
            "PyTorch has room for one. Uninstall one of the two packages."
        )
    torch.utils.rename_privateuse1_backend("tpu")
    from torchtpu_core import _C, interprocess, process_groups, tpu

    _C.register_backend()
    torch._register_device_module("tpu", tpu)
    _alias_submodules(tpu)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True, unsupported_dtype=None)
    torch.set_autocast_dtype("tpu", torch.bfloat16)  # PyTorch starts every backend with float16
    interprocess.register()
    process_groups.register()
    _registered = True


def _alias_submodules(module: types.ModuleType) -> None:
    """Make `import torch.tpu.memory` find the modules of this package."""
    prefix = module.__name__ + "."
    for name in [n for n in sys.modules if n.startswith(prefix)]:
        sys.modules["torch.tpu." + name.removeprefix(prefix)] = sys.modules[name]
