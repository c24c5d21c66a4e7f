# SPDX-License-Identifier: Apache-2.0
"""Published rows: what the project promises of its errors, and what the command says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torchtpu_core.cli.app import make_app
from torchtpu_core.errors import SpecError
from torchtpu_core.validation import compare, read_rows
from torchtpu_core.validation.compare import Summary, by_configuration, by_row
from torchtpu_core.workloads import read_specs
from typer.testing import CliRunner

PUBLISHED = Path(__file__).parents[4] / "benchmarks" / "validation"
ROWS = "id,metric,value,unit\nA,bandwidth,1360,GB/s\nB,warp_speed,9,c\nC,time,1,s\n"
COPY = "rows = ['A', 'B']\n[hardware]\nchip = 'v6e'\n[copy]\nbytes = 33554432\n"


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, Path]:
    """A table of three rows, of which the model covers one, and a folder of specs."""
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "copy.toml").write_text(COPY)
    (tmp_path / "rows.csv").write_text(ROWS)
    return tmp_path / "rows.csv", tmp_path / "specs"


def test_public_rows_are_predicted_within_the_promised_errors() -> None:
    found = compare(read_rows(PUBLISHED / "rows.csv"), read_specs(PUBLISHED / "specs"))
    assert len(found) == 127
    assert all(item.predicted is not None for item in found)
    for figures in (by_row(found), by_configuration(found)):
        assert figures.median <= 0.10
        assert figures.within >= 0.9


def test_row_is_compared_and_others_get_a_reason(small) -> None:
    rows, specs = small
    good, unknown, missing = compare(read_rows(rows), read_specs(specs))
    # 2 x 32 MiB at 0.867 of 1638 GB/s, and 1.5 us to start.
    expected = 2 * 33554432 / (2 * 33554432 / (0.867 * 1638e9) + 1.5e-6) / 1e9
    assert good.predicted == pytest.approx(expected)
    assert "warp_speed" in unknown.reason
    assert "no spec file" in missing.reason


def test_summary_of_errors_takes_magnitudes() -> None:
    assert Summary.of([-0.3, 0.1, 0.2]) == Summary(
        count=3, median=0.2, worst=0.3, within=pytest.approx(2 / 3)
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [("id,metric\n", "lacks the columns"), (ROWS + "A,time,1,s\n", "occurs twice")],
)
def test_wrong_table_of_rows_raises(tmp_path, text, message) -> None:
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(SpecError, match=message):
        read_rows(tmp_path / "rows.csv")


def test_command_writes_every_row_and_says_simulated(small, tmp_path) -> None:
    rows, specs = small
    out = tmp_path / "out.json"
    args = ["validate", "--rows", str(rows), "--specs", str(specs), "--json", str(out)]
    done = CliRunner().invoke(make_app(), args)
    assert done.exit_code == 0, done.output
    assert "1 rows: median error" in done.output
    assert "simulated" in done.output
    written = json.loads(out.read_text())
    assert [row["id"] for row in written["rows"]] == ["A", "B", "C"]
    assert written["simulated"] is True


def test_command_with_a_wrong_folder_says_so_without_a_traceback(small) -> None:
    rows, specs = small
    done = CliRunner().invoke(
        make_app(), ["validate", "--rows", str(rows), "--specs", str(specs / "none")]
    )
    assert done.exit_code == 1
    assert "SpecError" in done.output
    assert "Traceback" not in done.output
