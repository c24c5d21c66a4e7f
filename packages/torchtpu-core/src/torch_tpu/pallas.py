# SPDX-License-Identifier: Apache-2.0
"""Custom JAX and Pallas kernels, from `torchtpu-kernels`."""

from __future__ import annotations

from torch_tpu._extras import require

_module = require("torchtpu_kernels.pallas", "kernels", "torch_tpu.pallas")
custom_jax_kernel = _module.custom_jax_kernel
jax_op = _module.jax_op

__all__ = ["custom_jax_kernel", "jax_op"]
