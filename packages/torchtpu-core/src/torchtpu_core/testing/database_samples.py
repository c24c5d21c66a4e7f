# SPDX-License-Identifier: Apache-2.0
"""Samples of PyTorch's operator database as plain arguments, for the test of a lowering."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def database_samples(
    name: str, dtype: torch.dtype = torch.float32
) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Positional and keyword arguments of each sample of an operator.

    Args:
        name: the ATen name without namespace, such as ``sinc``.
        dtype: of the samples.

    Raises:
        LookupError: the database has no such operator.
    """
    from torch.testing._internal.common_methods_invocations import op_db

    entries = [op for op in op_db if name in (op.name, op.aten_name)]
    if not entries:
        raise LookupError(
            f"PyTorch's operator database has no entry for {name!r}: write the arguments of the "
            "test by hand."
        )
    for sample in entries[0].sample_inputs("cpu", dtype):
        yield [sample.input, *sample.args], dict(sample.kwargs)
