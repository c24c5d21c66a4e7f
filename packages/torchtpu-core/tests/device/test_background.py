# SPDX-License-Identifier: Apache-2.0
"""The thread that compiles beside the script."""

from __future__ import annotations

import threading

import pytest
from torchtpu_core.runtime import background


def _wait(gate: threading.Event) -> None:
    gate.wait()


def test_the_heap_is_given_back_once_all_programs_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[bool] = []
    monkeypatch.setattr(background, "give_back_heap", lambda: given.append(True), raising=False)
    worker, gate = background._Worker(), threading.Event()
    worker.submit(lambda: _wait(gate), 1, True)
    worker.submit(lambda: None, 1, True)
    gate.set()
    worker.wait()
    assert len(given) == 1
