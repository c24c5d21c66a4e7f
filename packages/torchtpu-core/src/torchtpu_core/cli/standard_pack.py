# SPDX-License-Identifier: Apache-2.0
"""Compiling the standard operators into a directory of their own."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from torchtpu_core import _C, env_vars
from torchtpu_core.cli import standard_ops as table
from torchtpu_core.runtime import caching


def compile_standard_ops(root: Path, match: str = "") -> int:
    """Run every standard operator once in Strict, its programs kept in `root`.

    Args:
        root: a directory for the entries.
        match: only operators whose name contains this.

    Returns:
        How many calls were made.
    """
    before = os.environ.get("TORCH_TPU_CACHE_DIR")
    os.environ["TORCH_TPU_CACHE_DIR"] = str(root)
    _forget()
    try:
        with torch.no_grad(), torch.tpu.set_eager_mode("strict"):
            calls = [call for name, call in _calls() if match in name]
            for call in calls:
                call()
            torch.tpu.synchronize()
    finally:
        os.environ.pop("TORCH_TPU_CACHE_DIR")
        if before is not None:
            os.environ["TORCH_TPU_CACHE_DIR"] = before
        _forget()
    return len(calls)


def _forget() -> None:
    """The settings and the programs in memory, so that each is made anew."""
    env_vars.reset()
    caching.reset()
    if _C.is_started():
        _C.clear_programs()


def _calls() -> Iterator[tuple[str, Callable[[], object]]]:
    for dtype in table.DTYPES:
        for shape in table.SHAPES:
            of_one = table.UNARY | (table.ROWWISE if shape else {})
            for name, unary in of_one.items():
                yield name, functools.partial(_call, unary, dtype, shape)
            for name, binary in table.BINARY.items():
                yield name, functools.partial(_call, binary, dtype, shape, shape)
        for m, k, n in table.PRODUCTS:
            for name, product in table.MATRICES.items():
                yield name, functools.partial(_call, product, dtype, (m, k), (k, n))


def _call(function: Callable[..., object], dtype: torch.dtype, *shapes: tuple[int, ...]) -> None:
    function(*(torch.ones(shape, dtype=dtype).to("tpu") for shape in shapes))
