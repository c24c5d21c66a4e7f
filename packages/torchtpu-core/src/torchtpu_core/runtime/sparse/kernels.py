# SPDX-License-Identifier: Apache-2.0
"""Which kernel serves which operator on which sparse tensors of the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchtpu_core.runtime.sparse import compressed, coo, products

_COO, _CSR, _DENSE = "SparsePrivateUse1", "SparseCsrPrivateUse1", "PrivateUse1"

#: Overload of ``aten``, dispatch key, kernel.
KERNELS: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("_coalesce", _COO, coo.coalesce),
    ("_to_dense", _COO, coo.to_dense),
    ("add.out", _COO, coo.add_out),
    ("addmm", _COO, products.addmm),
    ("mul.out", _COO, coo.mul_out),
    ("norm.ScalarOpt_dim", _COO, coo.norm),
    ("sparse_mask", _COO, coo.mask),
    ("_sparse_mm_reduce_impl_backward", _CSR, products.mm_reduce_backward),
    ("_to_dense", _CSR, compressed.to_dense),
    ("_to_sparse_bsc", _CSR, compressed.to_bsc),
    ("_to_sparse_bsr", _CSR, compressed.to_bsr),
    ("_to_sparse_csc", _CSR, compressed.to_csc),
    ("_to_sparse_csr", _CSR, compressed.to_csr),
    ("add.Tensor", _CSR, compressed.add),
    ("add_.Tensor", _CSR, compressed.add_),
    ("addmm", _CSR, products.addmm),
    ("addmv.out", _CSR, products.addmv_out),
    ("mm", _CSR, products.compressed_mm),
    ("mul.Tensor", _CSR, compressed.mul),
    ("mul_.Tensor", _CSR, compressed.mul_),
    ("sparse_mask", _CSR, compressed.mask),
    ("sparse_sampled_addmm", _CSR, compressed.sampled_addmm),
    ("_convert_indices_from_coo_to_csr", _DENSE, compressed.bounds_of_csr),
    ("_convert_indices_from_csr_to_coo", _DENSE, compressed.positions_of_coo),
    ("_validate_compressed_sparse_indices", _DENSE, compressed.validate),
)


def register(library: torch.library.Library) -> None:
    """Serve the kernels.

    Args:
        library: an ``IMPL`` library of the namespace ``aten``.
    """
    for overload, key, kernel in KERNELS:
        library.impl(overload, kernel, key, allow_override=True)
