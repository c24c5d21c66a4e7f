# SPDX-License-Identifier: Apache-2.0
"""Many programs through a compiler that ends its process at some."""

from __future__ import annotations

import pytest
import torch
from torchtpu_core.errors import TPUCompileError
from torchtpu_core.targets import parse_target
from torchtpu_core.testing.tpu_programs import Programs
from torchtpu_core.xla_tpu import trying

V5E = parse_target("v5e:1x1")

#: A compiler that refuses some programs, ends its process at others, and never ends with a third.
COMPILER = """
import json, os, pathlib, sys, threading
directory = pathlib.Path(sys.argv[1])
for name in json.loads((directory / "job.json").read_text())["programs"]:
    (directory / "current").write_text(name)
    program = (directory / name).read_bytes()
    if program == b"ends":
        os.abort()
    if program == b"waits":
        threading.Event().wait()
    with (directory / "tried.jsonl").open("a") as tried:
        print(json.dumps([name, "no" if program == b"refused" else ""]), file=tried)
"""


def test_programs_after_one_that_ends_the_compiler_are_tried(monkeypatch) -> None:
    monkeypatch.setattr(trying, "require_libtpu", lambda what: None)
    monkeypatch.setattr(trying, "_CHILD", COMPILER)
    kinds = (b"good", b"ends", b"refused", b"ends", b"waits", b"good")
    programs = {f"program {i}": kind for i, kind in enumerate(kinds)}
    counts: list[int] = []
    said = trying.try_all(programs, V5E, timeout_s=5.0, progress=counts.append)
    expected = ["", trying.ENDED, "no", trying.ENDED, trying.LATE, ""]
    assert [said[name] for name in programs] == expected
    assert counts == [2, 4, 5, 6]


def test_compiler_that_does_not_start_is_an_error_and_no_programs_fault(monkeypatch) -> None:
    monkeypatch.setattr(trying, "require_libtpu", lambda what: None)
    monkeypatch.setattr(trying, "_CHILD", "raise SystemExit('no such library')")
    with pytest.raises(TPUCompileError, match="no such library"):
        trying.try_all({"program": b"good"}, V5E)


@pytest.mark.usefixtures("strict_on_device_0")
@pytest.mark.filterwarnings("ignore::torchtpu_core.runtime.fallbacks.FallbackWarning")
def test_programs_of_the_device_are_lowered_for_a_tpu_without_those_of_the_host() -> None:
    programs = Programs("v5e:1x1")
    x = torch.rand(5, 3, device="tpu", dtype=torch.float64)
    x.cpu()
    with programs.collecting("float64 "):
        (x.atanh() + 17).cpu()
        x.digamma().cpu()
    assert set(programs.lowered) >= {"float64 atanh 1"}
    assert not any("digamma" in name for name in programs.lowered)
    assert not programs.refused
