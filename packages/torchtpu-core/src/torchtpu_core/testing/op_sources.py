# SPDX-License-Identifier: Apache-2.0
"""Where the entries and samples of a sweep come from: PyTorch's databases, as data.

`binary_ufuncs`, `unary_ufuncs`, `reduction_ops`, `shape_funcs` and the `sparse_*` lists
are parts of `op_db`; their own samples are the ``reference`` and ``sparse_*`` forms.
"""

from __future__ import annotations

import contextlib
import unittest
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations as database

#: Databases by the name that `--database` takes.
DATABASES: Mapping[str, Callable[[], list[Any]]] = {
    "op_db": lambda: list(database.op_db),
    "python_ref_db": lambda: list(database.python_ref_db),
    "foreach": lambda: [
        *database.foreach_unary_op_db,
        *database.foreach_binary_op_db,
        *database.foreach_pointwise_op_db,
        *database.foreach_reduce_op_db,
        *database.foreach_other_op_db,
    ],
}

#: Forms whose samples are others than `sample_inputs`: the method that makes them and the
#: attribute of an entry that says whether it has any.
SAMPLERS: Mapping[str, tuple[str, str]] = {
    "reference": ("reference_inputs", "reference_inputs_func"),
    "sparse_coo": ("sample_inputs_sparse_coo", "supports_sparse"),
    "sparse_csr": ("sample_inputs_sparse_csr", "supports_sparse_csr"),
    "sparse_csc": ("sample_inputs_sparse_csc", "supports_sparse_csc"),
    "sparse_bsr": ("sample_inputs_sparse_bsr", "supports_sparse_bsr"),
    "sparse_bsc": ("sample_inputs_sparse_bsc", "supports_sparse_bsc"),
}


def label(source: str, form: str) -> str:
    """How a sweep is called in its results: the form, with the database unless it is `op_db`."""
    return form if source == "op_db" else f"{source} {form}"


def samples(op: Any, dtype: torch.dtype, form: str, gradients: bool) -> Iterable[Any]:
    """Samples of an entry on the CPU, the same at every call."""
    torch.manual_seed(0)
    method, condition = SAMPLERS.get(form, ("sample_inputs", "name"))
    if not getattr(op, condition, None):
        return []
    return _made(getattr(op, method), dtype, gradients)


def _made(sampler: Callable[..., Iterable[Any]], dtype: torch.dtype, gradients: bool) -> Any:
    """Some entries say that they take a sparse layout and have no samples of it."""
    with contextlib.suppress(NotImplementedError, unittest.SkipTest):
        yield from sampler("cpu", dtype, requires_grad=gradients)
