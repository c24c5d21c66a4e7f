# SPDX-License-Identifier: Apache-2.0
"""Which place a script is told that keeps asking for programs, and what `explain()` prints."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import pytest
import torch
from torchtpu_core.runtime import explanations
from torchtpu_core.tpu.explain import Explanation, Flush


def trace(*lines: str) -> Any:
    """A trace of one operator per line."""
    node = {"name": "aten::cosh", "inputs": []}
    return {"nodes": [{**node, "line": line} for line in lines]}


@pytest.fixture
def notice(monkeypatch):
    """Asks for programs of a trace as often as a warning needs; the warnings."""
    for name, empty in (("_by_line", Counter()), ("_warned", set())):
        monkeypatch.setattr(explanations, name, empty)
    for name in ("_compiles", "_known"):
        monkeypatch.setattr(explanations, name, getattr(explanations, name).copy())

    def ask(*traces: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for each in traces:
                explanations.note_compile(each, "event")
        return [str(each.message).partition(". ")[0] for each in found]

    return ask


def test_place_is_the_last_line_that_is_known(notice):
    found = notice(*[trace("train.py:3", "train.py:7", "")] * 8)
    assert found == ["<TorchTpu/fused> 8 programs were compiled for the operators up to train.py:7"]
    assert explanations.compiles()[-1].line == "train.py:7"


def test_place_without_any_line_is_the_last_operator(notice):
    found = notice(*[trace("", "")] * 8)
    assert found == ["<TorchTpu/fused> 8 programs were compiled for the operators up to aten::cosh"]


def test_flushes_that_come_again_in_the_same_order_are_listed_once() -> None:
    def flush(ops: int) -> Flush:
        return Flush(ops, "optimizer step", "one program", 0, False, "train.py:3 in step")

    step = [flush(2), flush(3), flush(3), flush(4)]
    text = str(Explanation((flush(1), *step * 5, flush(2), flush(9)), (), 0))
    numbers = [line.split(", ended")[0].strip() for line in text.splitlines()[3:]]
    cycle = ["1 x 2 ops", "2 x 3 ops", "1 x 4 ops"]
    expected = ["1 x 1 ops", "5 times:", *cycle, "1 x 2 ops", "1 x 9 ops"]
    assert [number.removesuffix(" as one program") for number in numbers] == expected


def test_explain_counts_what_counters_counts() -> None:
    x = torch.arange(3.0, device="tpu")
    before = torch.tpu.counters()["compiles"]
    for size in (5, 6, 7):  # ops one by one, which no stream asks for
        x.new_ones(size).sinh().cosh().tolist()
    explained = torch.tpu.explain()
    assert sum(explained.compiled.values()) == torch.tpu.counters()["compiles"] >= before
    assert f"{torch.tpu.counters()['compiles']} programs compiled" in str(explained)
    torch.tpu.reset_counters()
    assert "0 programs compiled" in str(torch.tpu.explain())
