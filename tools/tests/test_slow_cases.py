# SPDX-License-Identifier: Apache-2.0
"""The list of slow cases: every line names a test that is there, and leaves it other cases."""

from __future__ import annotations

import doctest

import slow_cases
from sources import ROOT


def test_longest_part_of_a_sweep_is_chosen() -> None:
    assert doctest.testmod(slow_cases).failed == 0


def test_short_sweeps_and_short_cases_stay() -> None:
    short = {f"t.py::test_x[{n}]": 0.24 * slow_cases.SWEEP_S for n in range(4)}
    few = {f"t.py::test_y[{n}]": 9.0 for n in range(slow_cases.FEWEST - 1)}
    many = {f"t.py::test_z[{n}]": 0.9 * slow_cases.CASE_S for n in range(99)}
    pages = {f"docs/tests/t.py::test_page[{n}]": 9.0 for n in range(9)}
    assert slow_cases.chosen(short | few | many | pages) == set()


def test_both_backends_of_a_sweep_stay() -> None:
    pair = {f"t.py::test_x[{name}]": 9.0 for name in slow_cases.BACKENDS}
    assert slow_cases.chosen(pair) == set()
    sweep = {f"t.py::test_x[{n}-{name}]": 9.0 + n for n in (0, 1) for name in slow_cases.BACKENDS}
    assert slow_cases.chosen(sweep) == {case for case in sweep if "[1-" in case}


def test_every_listed_case_is_of_a_test_that_is_there() -> None:
    for case in slow_cases.listed():
        file, _, name = case.partition("::")
        text = (ROOT / file).read_text()
        assert f"def {name.partition('[')[0]}(" in text, case
        assert "[" in name, f"{case} is no case of a sweep: mark it in its file"
