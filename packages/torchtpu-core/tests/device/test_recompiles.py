# SPDX-License-Identifier: Apache-2.0
"""Whether a script whose streams ask for programs again and again is told so."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torchtpu_core.runtime import explanations


def _stream(*names: str, rows: int = 4, line: str) -> Any:
    geometry = (rows, 8), (8, 1), torch.float32
    inputs = [(0, geometry, None, None)]
    return {"nodes": [{"name": name, "line": line, "inputs": inputs} for name in names]}


def _warnings_of(streams: list[Any]) -> list[tuple[str, tuple[str, int]]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for stream in streams:
            explanations.note_compile(stream, "host read")
    return [(str(warning.message), (warning.filename, warning.lineno)) for warning in caught]


def test_streams_of_several_kinds_that_end_at_one_line_are_no_recompilation() -> None:
    line = "meter.py:3 in read"
    kinds = [_stream(*["aten::add.Tensor"] * n, line=line) for n in range(1, 13)]
    assert not _warnings_of(kinds)


@pytest.mark.parametrize("count", [8, 32])
def test_eight_programs_of_the_same_calls_or_very_many_of_any_are_named_once(count: int) -> None:
    line = f"train.py:{count} in step"
    if count == 8:
        streams = [_stream("aten::add.Tensor", rows=rows, line=line) for rows in range(1, 20)]
    else:
        streams = [_stream(*["aten::add.Tensor"] * n, line=line) for n in range(1, 50)]
    ((message, place),) = _warnings_of(streams)
    assert place == ("train.py", count)
    assert f"{count} programs were compiled for the operators up to {line}" in message
