# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest that runs the device tests of PyTorch's own test files on one device.

PyTorch instantiates the classes of its test files once per device type. This plugin keeps the
instances of one device, of chosen dtypes, and writes a line of JSON before and after each test,
so that `torchtpu_core.testing.pytorch_tests` knows which test ended a process and can go on
after it. It does not decide what is right: that is PyTorch's own assertions.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from torchtpu_core.testing.gone_names import supply_gone_names

#: The variable in which the driver passes a `Selection`.
VARIABLE = "PYTORCH_TESTS_SELECTION"
_DTYPES = (
    "float16|float32|float64|bfloat16|complex32|complex64|complex128|bool|uint8|uint16|uint32|"
    "uint64|int8|int16|int32|int64|float8_\\w+"
)
_INSTANCE = re.compile(
    r"^(\w+?)(?:PRIVATEUSE1|TPU|CPU)::(\w+?)_(?:privateuse1|tpu|cpu)((?:_\w+)?)$"
)
_DTYPE = re.compile(rf"(?<=_)({_DTYPES})(?=_|$)")


def neutral_name(test: str) -> str | None:
    """Class and test without the device; None for what is not an instance for a device.

    >>> neutral_name("TestViewOpsPRIVATEUSE1::test_to_tpu_int64")
    'TestViewOps::test_to_int64'
    >>> neutral_name("TestOther::test_to") is None
    True
    """
    found = _INSTANCE.match(test)
    return None if found is None else "{}::{}{}".format(*found.groups())


def dtypes_of(test: str) -> set[str]:
    """The dtypes in the part of a name that follows the device.

    >>> sorted(dtypes_of("TestTPU::test_float32_to_tpu_int64_bool"))
    ['bool', 'int64']
    """
    found = _INSTANCE.match(test)
    return set() if found is None else set(_DTYPE.findall(found.group(3)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which tests to run, and where to write.

    Attributes:
        journal: a file of lines; what it names already was tried by an earlier process.
        dtypes: a test of any other dtype is left out.
        sample: how many tests to run at most, spread evenly; 0 for all.
        only: neutral names of tests; None for all.
    """

    journal: str
    dtypes: tuple[str, ...]
    sample: int
    only: tuple[str, ...] | None = None

    def choose(self, tests: list[str]) -> list[int]:
        """The places of the tests to run, of all that were collected."""
        kept = [i for i, test in enumerate(tests) if self._keeps(test)]
        if 0 < self.sample < len(kept):
            kept = [kept[i * len(kept) // self.sample] for i in range(self.sample)]
        path = Path(self.journal)
        lines = path.read_text().splitlines() if path.exists() else []
        entries = [json.loads(line) for line in lines]
        tried = {entry["test"] for entry in entries if entry["outcome"] != "began"}
        return [i for i in kept if neutral_name(tests[i]) not in tried]

    def _keeps(self, test: str) -> bool:
        name = neutral_name(test)
        if name is None or not dtypes_of(test) <= set(self.dtypes):
            return False
        return self.only is None or name in self.only


class Journal:
    """Keeps the selected tests, and writes what began and how it ended."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection

    def _write(self, nodeid: str, **entry: Any) -> None:
        with Path(self._selection.journal).open("a") as file:
            file.write(json.dumps({"test": neutral_name(_test(nodeid)), **entry}) + "\n")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the device's instances that no earlier process tried."""
        items[:] = [items[i] for i in self._selection.choose([_test(i.nodeid) for i in items])]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note the test that may end the process."""
        self._write(nodeid, outcome="began")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """Let what a test left on the device run: an error in it is this test's, not the next's."""
        try:
            result = yield
        except BaseException:
            with contextlib.suppress(RuntimeError, IndexError, TypeError, ValueError):
                _finish()
            raise
        _finish()
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the outcome: of the call, or of a set-up that skipped or failed."""
        if report.when == "teardown" or (report.when != "call" and report.passed):
            return
        detail = "" if report.passed else _reason(report)
        seconds = round(report.duration, 2)
        self._write(report.nodeid, outcome=report.outcome, seconds=seconds, detail=detail)


def _finish() -> None:
    if torch.tpu.is_initialized():
        torch.tpu.synchronize()


def _test(nodeid: str) -> str:
    return nodeid.partition("::")[2]


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])[:300]
    crash = getattr(report.longrepr, "reprcrash", None)
    message = str(crash.message if crash else report.longrepr)
    return message.partition("\nTo execute this test")[0].strip()[:600]


def pytest_pycollect_makemodule(module_path: Path) -> None:
    """Let a file of an earlier PyTorch be imported."""
    supply_gone_names(module_path)


def pytest_configure(config: pytest.Config) -> None:
    """Register the journal with the selection that the driver passes."""
    given = json.loads(os.environ[VARIABLE])
    config.pluginmanager.register(Journal(Selection(**given)), "pytorch-tests-journal")
