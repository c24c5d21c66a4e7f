# SPDX-License-Identifier: Apache-2.0
"""The demo tells equal curves from different ones, and the tpu's are equal to the CPU's."""

from __future__ import annotations

import io
import math
from pathlib import Path

import _common
import compare
import pytest
import train_digits
import train_gpt
from rich.console import Console


def run_of(*losses: float, device: str = "cpu") -> _common.Run:
    """A record with the given losses."""
    return _common.Run(name="digits", device=device, losses=list(losses))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((1.0, 0.5), (1.0, 0.5), 0.0),
        ((1.0, 0.5), (1.0, 0.25), 0.25),
        ((4.0, 0.5), (3.0, 0.5), 0.25),
        ((math.nan, 0.5), (1.0, 0.5), math.inf),
        ((1.0, 0.5), (1.0, math.nan), math.inf),
    ],
)
def test_largest_difference(
    first: tuple[float, ...], second: tuple[float, ...], expected: float
) -> None:
    assert compare.largest_difference(run_of(*first), run_of(*second)) == expected


@pytest.mark.parametrize(("other", "code"), [(0.50004, 0), (0.5002, 1)])
def test_main_exit_code_says_whether_curves_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: float, code: int
) -> None:
    curves = {"cpu": run_of(1.0, 0.5), "tpu": run_of(1.0, other, device="tpu")}
    monkeypatch.setattr(compare, "run_example", lambda name, device, steps, out: curves[device])
    assert compare.main(["--out", str(tmp_path)]) == code
    assert {p.name for p in tmp_path.iterdir()} == {"digits.png", "gpt.png"}


def test_table_holds_both_final_losses_within_80_columns() -> None:
    first, second = run_of(1.0, 0.5), run_of(1.0, 0.25, device="tpu")
    for run in (first, second):
        run.metrics["test accuracy"] = 0.9917
    buffer = io.StringIO()
    Console(file=buffer, width=80).print(compare.table_of([(first, second)]))
    (row,) = (line for line in buffer.getvalue().splitlines() if "digits" in line)
    for cell in ("0.500000", "0.250000", "2.5e-01", "99.2% / 99.2%"):
        assert cell in row


@pytest.mark.parametrize(
    ("example", "options"),
    [
        (train_digits, ["--width=8"]),
        (train_gpt, ["--layers=2", "--width=32", "--heads=2", "--context=32", "--sample=0"]),
    ],
)
def test_200_steps_on_tpu_have_the_losses_of_the_cpu(
    example: object, options: list[str], tmp_path: Path
) -> None:
    name = "digits" if example is train_digits else "gpt"
    for device in ("cpu", "tpu"):
        example.main([*options, f"--device={device}", f"--out={tmp_path}"])  # type: ignore[attr-defined]
    cpu, tpu = (_common.load(tmp_path / f"{name}-{device}.json") for device in ("cpu", "tpu"))
    assert len(cpu.losses) == 200
    assert compare.largest_difference(cpu, tpu) <= compare.TOLERANCE
