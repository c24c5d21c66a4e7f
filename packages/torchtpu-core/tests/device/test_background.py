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


@pytest.mark.parametrize(("silent_s", "said"), [(0.01, 1), (60.0, 0)])
def test_the_end_of_a_process_says_what_it_waits_for(
    silent_s: float, said: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(background, "_SILENT_S", silent_s)
    monkeypatch.setattr(background, "_LAST_S", 0.0)
    worker, begun, gate = background._Worker(), threading.Event(), threading.Event()
    worker.submit(lambda: (begun.set(), _wait(gate)), 1, True)
    begun.wait()  # what is only queued is dropped at the end
    threading.Timer(0.3, gate.set).start()
    worker.stop()
    assert gate.is_set()
    assert capsys.readouterr().err.count("waiting for the program that is being compiled") == said


def test_ctrl_c_ends_a_process_that_waits_for_a_compilation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    codes: list[int] = []
    monkeypatch.setattr(background.os, "_exit", codes.append)
    worker = background._Worker()
    monkeypatch.setattr(worker._changed, "wait_for", interrupted)
    worker._wait_for_the_last()
    assert codes == [130]
