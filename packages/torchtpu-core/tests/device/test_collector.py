# SPDX-License-Identifier: Apache-2.0
"""The garbage collector rests while programs are traced, and only then."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Iterator

import jax
import pytest
from torchtpu_core.runtime import clients, compiling
from torchtpu_core.runtime.collector import keep_interrupts, uncollected


def _compile(function):
    aval = jax.ShapeDtypeStruct((3,), "float32", sharding=clients.sharding(0))
    return compiling.compile_function(function, [aval], [], "probe")


def test_no_collection_while_a_program_is_traced() -> None:
    seen = []

    def function(x):
        seen.append(gc.isenabled())
        return (x + len(seen),)

    assert gc.isenabled()
    _compile(function)
    assert seen == [False]
    assert gc.isenabled()


def test_an_error_in_tracing_lets_it_run_again() -> None:
    def function(x):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        _compile(function)
    assert gc.isenabled()


def test_the_last_of_several_threads_ends_the_rest() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with uncollected():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with uncollected():
        thread.start()
        assert inside.wait(10)
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_a_collector_that_the_user_stopped_stays_stopped() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.fixture
def _ctrl_c_interrupts() -> Iterator[None]:
    """What a shell without job control starts in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _collect_pressing(when: str) -> None:
    """Ctrl-C in a callback of the collector is raised after the collection."""

    def press(phase: str, _info: object) -> None:
        if phase == when:
            signal.raise_signal(signal.SIGINT)

    gc.callbacks.append(press)
    try:
        with pytest.raises(KeyboardInterrupt):
            gc.collect()
    finally:
        gc.callbacks.remove(press)


@pytest.mark.usefixtures("_ctrl_c_interrupts")
@pytest.mark.parametrize("when", ["start", "stop"])
def test_ctrl_c_in_a_callback_of_the_collector_is_raised_in_the_script(monkeypatch, when) -> None:
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)

    keep_interrupts()
    keep_interrupts()
    _collect_pressing(when)
    assert not said


class _Closed:
    """Its finalizer, which is Python code, is where the interpreter handles a signal that waits."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        self.closed = True


@pytest.mark.usefixtures("_ctrl_c_interrupts")
def test_ctrl_c_that_a_finalizer_swallows_is_raised_in_the_script(monkeypatch) -> None:
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)

    keep_interrupts()
    gc.collect()
    _Closed()
    _collect_pressing("start")
    assert not said


def test_other_mistakes_in_callbacks_of_the_collector_are_told_as_ever(monkeypatch) -> None:
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: said.append(lost.exc_type))

    def fail(_phase: str, _info: object) -> None:
        raise ValueError

    keep_interrupts()
    gc.callbacks.append(fail)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(fail)
    assert said == [ValueError, ValueError]
