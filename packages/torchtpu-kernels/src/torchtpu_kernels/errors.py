# SPDX-License-Identifier: Apache-2.0
"""Mistakes in defining or calling a kernel."""

from __future__ import annotations

from torchtpu_core.errors import TorchTPUError


class KernelArgumentError(TorchTPUError, TypeError):
    """An argument that a kernel cannot take.

    Fix: pass tensors of device tpu (or None, or lists of them), and name everything
    else in ``static_argnums`` or ``static_argnames``.
    """


class KernelDefinitionError(TorchTPUError, ValueError):
    """A kernel definition that contradicts itself or its function's signature.

    Fix: see the message.
    """


class KernelDtypeError(TorchTPUError, TypeError):
    """A Pallas kernel was given 64-bit operands.

    Why: TPU cores have no 64-bit types; Mosaic refuses such kernels.
    Fix: cast to a 32-bit type before the call.
    """


class KernelNotSupportedError(TorchTPUError, NotImplementedError):
    """A feature of custom kernels that is not built yet.

    Fix: leave the argument out.
    """
