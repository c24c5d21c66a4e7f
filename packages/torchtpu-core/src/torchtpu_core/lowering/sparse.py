# SPDX-License-Identifier: Apache-2.0
"""Operators on sparse tensors that run on the host, and why.

What runs on the device is in `torchtpu_core.runtime.sparse`: those kernels are made of
operators on the components, which have rows of their own.
"""

from __future__ import annotations

from torchtpu_core.lowering.table import Lowering, host

_PATTERN = "the number of nonzero elements of the result depends on the operands' indices"
_ROWS = "no lowering is written for reductions over the nonzero elements of a row"

TABLE: tuple[Lowering, ...] = (
    host("aten::_sparse_softmax", _ROWS),
    host("aten::_sparse_softmax_backward_data", _ROWS),
    host("aten::_sparse_log_softmax", _ROWS),
    host("aten::_sparse_log_softmax_backward_data", _ROWS),
    host("aten::_sparse_sparse_matmul", _PATTERN),
    host("aten::_sparse_csr_sum", _PATTERN),
    host("aten::_sparse_mm_reduce_impl", _ROWS),
)
