# SPDX-License-Identifier: Apache-2.0
"""Sparse tensors on the device, made of operators on their components.

A sparse tensor of the device is a few dense ones there: positions and values. PyTorch's
own kernels that arrange them are registered in `csrc/sparse.cpp`; here stands what
PyTorch has per backend. What is in neither place runs on the host, visibly.
"""

from torchtpu_core.runtime.sparse.kernels import register

__all__ = ["register"]
