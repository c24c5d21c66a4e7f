# SPDX-License-Identifier: Apache-2.0
"""Where the entries and samples of a sweep come from: PyTorch's databases, as data.

`binary_ufuncs`, `unary_ufuncs`, `reduction_ops`, `shape_funcs` and the `sparse_*` lists
are parts of `op_db`; their own samples are the ``reference`` and ``sparse_*`` forms.
"""

from __future__ import annotations

import contextlib
import random
import unittest
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.testing._internal import common_methods_invocations as database
from torch.testing._internal.common_utils import SEED

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

#: Forms whose samples are others than ``sample_inputs``: the function that makes them and the
#: attribute of an entry that says whether it has any.
SAMPLERS: Mapping[str, tuple[str, str]] = {
    "reference": ("reference_inputs_func", "reference_inputs_func"),
    "sparse_coo": ("sample_inputs_sparse_coo_func", "supports_sparse"),
    "sparse_csr": ("sample_inputs_sparse_csr_func", "supports_sparse_csr"),
    "sparse_csc": ("sample_inputs_sparse_csc_func", "supports_sparse_csc"),
    "sparse_bsr": ("sample_inputs_sparse_bsr_func", "supports_sparse_bsr"),
    "sparse_bsc": ("sample_inputs_sparse_bsc_func", "supports_sparse_bsc"),
}


def label(source: str, form: str) -> str:
    """How a sweep is called in its results: the form, with the database unless it is `op_db`."""
    return form if source == "op_db" else f"{source} {form}"


def samples(op: Any, dtype: torch.dtype, form: str, gradients: bool) -> Iterator[Any]:
    """Samples of an entry on the CPU, the same at every call."""
    sampler, condition = SAMPLERS.get(form, ("sample_inputs_func", "name"))
    if getattr(op, condition, None):
        # Some entries say that they take a sparse layout and have no samples of it.
        with contextlib.suppress(NotImplementedError, unittest.SkipTest):
            yield from _seeded(getattr(op, sampler)(op, "cpu", dtype, gradients))


def mistakes(op: Any) -> Iterator[Any]:
    """The entry's calls that CPU refuses, the same at every time."""
    yield from _seeded(op.error_inputs_func(op, "cpu"))


def _seeded(made: Iterable[Any]) -> Iterator[Any]:
    """What a generator makes, each from the same seed.

    The methods of an entry do so too, but look for a test's class on the stack at each, which
    takes longer than the operator.
    """
    source, end = iter(made), object()
    while True:
        torch.default_generator.manual_seed(SEED)
        np.random.seed(SEED)
        random.seed(SEED)
        one = next(source, end)
        if one is end:
            return
        yield one
