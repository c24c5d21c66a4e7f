# SPDX-License-Identifier: Apache-2.0
"""Which cases of long sweeps are left to `nox -s slow`: the list `slow_cases.txt`.

    python tools/slow_cases.py REPORT.xml    add to it by a JUnit report of pytest

Of a test with two cases or more that takes `SWEEP_S` together, the two thirds that take longest
go there, as far as one takes more than `CASE_S`. The rest still runs each time. The cases of each
backend of `torch.compile` count as a test of their own, so that both run. `conftest.py` marks the
listed cases as slow. Pages of the documentation and examples all run each time.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree

from sources import ROOT

LIST = ROOT / "tools" / "slow_cases.txt"
SWEEP_S = 1.5
CASE_S = 0.2
FEWEST = 2
ALWAYS = ("docs/", "examples/")
BACKENDS = ("tpu", "inductor")


def listed(path: Path = LIST) -> set[str]:
    """The node ids in the list."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {line for line in lines if line and not line.startswith("#")}


def chosen(seconds: Mapping[str, float], known: Iterable[str] = ()) -> set[str]:
    """The cases to list.

    Args:
        seconds: what each case took, by node id.
        known: cases that are listed already, which count as those that took longest.

    >>> cases = {f"t.py::test_x[{n}]": 2.0 * n for n in range(6)}
    >>> sorted(chosen(cases))
    ['t.py::test_x[2]', 't.py::test_x[3]', 't.py::test_x[4]', 't.py::test_x[5]']
    >>> sorted(chosen({k: v for k, v in cases.items() if v < 8}, ["t.py::test_x[4]"]))
    ['t.py::test_x[2]', 't.py::test_x[3]', 't.py::test_x[4]']
    """
    sweeps: dict[str, dict[str, float]] = defaultdict(dict)
    for case, spent in seconds.items():
        if not case.startswith(ALWAYS):
            sweeps[_sweep(case)][case] = spent
    kept: dict[str, set[str]] = defaultdict(set)
    for case in known:
        kept[_sweep(case)].add(case)
    for sweep, cases in sweeps.items():
        count = len(kept[sweep] | cases.keys())
        if count < FEWEST or sum(cases.values()) < SWEEP_S:
            continue
        longest = sorted(cases, key=cases.__getitem__, reverse=True)
        room = max(0, count * 2 // 3 - len(kept[sweep]))
        kept[sweep] |= {case for case in longest[:room] if cases[case] > CASE_S}
    return set().union(*kept.values())


def _sweep(case: str) -> str:
    """The test, and the backend if its cases name one."""
    function, _, values = case.partition("[")
    named = [backend for backend in BACKENDS if backend in values.rstrip("]").split("-")]
    return " ".join((function, *named))


def _times(report: Path) -> dict[str, float]:
    """Seconds by node id."""
    return {
        f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}": float(
            case.attrib["time"]
        )
        for case in ElementTree.parse(report).iter("testcase")
    }


def main() -> int:
    """Write the list."""
    parser = argparse.ArgumentParser(description="Add the longest cases of sweeps to the list.")
    parser.add_argument("report", type=Path, help="what pytest --junitxml wrote")
    cases = sorted(chosen(_times(parser.parse_args().report), listed()))
    head = "# Made by tools/slow_cases.py: cases of sweeps that `nox -s slow` runs.\n"
    LIST.write_text(head + "".join(f"{case}\n" for case in cases))
    print(f"slow_cases: {len(cases)} cases")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
