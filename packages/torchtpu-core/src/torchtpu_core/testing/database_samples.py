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
    from torchtpu_core.testing import op_sources

    entries = [op for op in op_sources.DATABASES["op_db"]() if name in (op.name, op.aten_name)]
    if not entries:
        raise LookupError(
            f"PyTorch's operator database has no entry for {name!r}: write the arguments of the "
            "test by hand."
        )
    for sample in op_sources.samples(entries[0], dtype, "plain", gradients=False):
        yield [sample.input, *sample.args], dict(sample.kwargs)
