# SPDX-License-Identifier: Apache-2.0
"""What is learnt of sizes in a stream that never stops for the host: each call has a new site."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from torchtpu_core.runtime import varying


@pytest.fixture(autouse=True)
def _without_sites() -> Iterator[None]:
    varying.forget()
    yield
    varying.forget()


def _description(site: int, recent: int, line: str, sizes: tuple[int, ...]) -> dict[str, Any]:
    inputs = [(("operand", 0), (sizes, (1, 1), None), (sizes, (1, 1), None), None)]
    node = {"site": site, "recent": recent, "line": line, "name": "aten::gelu", "inputs": inputs}
    return {"nodes": [node | {"written": [], "only_out": False, "args": []}]}


def _open(rows: Iterable[int], line: str = "decode.py:7") -> list[bool]:
    """Whether each call is known to vary, in turns with one of a fixed size."""
    found = []
    for site, count in enumerate(rows, 1):
        fixed = varying.sizes_seen(_description(-site, 10**6, "decode.py:8", (5, 4)))
        assert not fixed
        found.append(bool(varying.sizes_seen(_description(site, hash(line), line, (count, 4)))))
    return found


def test_sizes_that_grow_steadily_are_open_from_the_third_on() -> None:
    assert _open(range(3, 40)) == [False, False] + [True] * 35


def test_sizes_that_grow_are_not_forgotten_for_new_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varying, "_MOST_SITES", 16)
    assert all(_open(range(3, 200))[2:])


def test_sizes_that_have_grown_long_may_leave_some_out() -> None:
    assert all(_open([*range(3, 20), 21, 22, 26, 9])[2:])


def test_sizes_that_leave_some_out_early_are_not_open() -> None:
    assert _open([3, 4, 6, 7]) == [False] * 4


def test_parameters_of_which_three_grow_teach_their_line_nothing() -> None:
    seen = _open([9, 4, 30, 12, 50, 7, 61, 3, 8, 24, 40, 5, 77])
    assert seen == [False] * 10 + [True, False, False]


def test_growing_sizes_say_nothing_of_another_line() -> None:
    _open(range(3, 20))
    assert _open([30, 40], "other.py:7") == [False] * 2
