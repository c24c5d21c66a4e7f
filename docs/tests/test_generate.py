# SPDX-License-Identifier: Apache-2.0
"""The reference pages show every row of the tables they are made from."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from torchtpu_core import env_vars
from torchtpu_core.hardware.records import RECORDS
from torchtpu_core.lowering import matmul
from torchtpu_core.testing import op_rules
from torchtpu_core.testing.tolerance import TOLERANCE

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import generate


def test_markdown_table_escapes_what_would_end_a_cell() -> None:
    table = generate.markdown_table(["a", "b"], [("x | y", "two\nlines")])
    assert table == "| a | b |\n| --- | --- |\n| x \\| y | two lines |\n"


def test_operators_page_lists_every_row_of_a_family() -> None:
    page = generate.operators_page()
    missing = [row.overload for row in matmul.TABLE if f"`{row.overload}`" not in page]
    assert not missing


@pytest.mark.parametrize("row", env_vars.table(), ids=lambda row: row.name)
def test_environment_page_lists_variable_with_its_meaning(row: env_vars.EnvVar) -> None:
    (line,) = (x for x in generate.environment_page().splitlines() if f"| `{row.name}` |" in x)
    assert row.meaning in line


def test_chips_page_names_the_source_of_every_figure() -> None:
    page = generate.chips_page()
    for chip in RECORDS:
        assert f"## {chip.name}\n" in page
        assert chip.hbm_bytes is None or generate._cell(chip.hbm_bytes.source) in page


def test_write_all_leaves_unchanged_pages_alone(tmp_path: Path) -> None:
    generate.write_all(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert {path.stem for path in before} == set(generate.PAGES)
    generate.write_all(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_functions_page_documents_every_public_name_of_torch_tpu() -> None:
    page = generate.api_page()
    import torchtpu_core.tpu as tpu

    for name in generate.public_names(tpu):
        value = getattr(tpu, name)
        if callable(value):
            assert f"### torch.tpu.{name}\n" in page
            assert value.__doc__, f"torch.tpu.{name} has no docstring"


def test_commands_page_has_doctor_and_plugins() -> None:
    page = generate.commands_page()
    assert "## torchtpu doctor\n" in page and "## torchtpu plugins\n" in page


def test_numerics_page_states_a_tolerance_per_dtype_and_every_exception() -> None:
    page = generate.numerics_page()
    for dtype, (rtol, atol) in TOLERANCE.items():
        name = str(dtype).removeprefix("torch.")
        assert f"| `{name}` | {rtol:g} | {atol:g} |" in page
    for _, names, reason in op_rules.EXCEPTIONS:
        assert reason in page
        assert all(f"`{name}`" in page for name in names)
