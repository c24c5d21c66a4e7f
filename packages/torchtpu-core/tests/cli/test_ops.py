# SPDX-License-Identifier: Apache-2.0
"""`torchtpu ops`: how an operator runs, and the scaffold of a new lowering."""

from __future__ import annotations

import ast
import importlib.util
import sys

import pytest
import torch
from torchtpu_core.cli.app import make_app
from torchtpu_core.cli.scaffold import add_to_family, make_scaffold
from torchtpu_core.errors import UnsupportedOpError
from typer.testing import CliRunner

#: An overload of PyTorch's that no table serves.
UNSERVED = "aten::_test_check_tensor"


def _run(*words: str):
    return CliRunner().invoke(make_app(), ["ops", *words], env={"TERM": "dumb"})


@pytest.mark.parametrize(
    ("overload", "how"),
    [
        ("aten::add.Tensor", "native"),
        ("aten::add_.Tensor", "native"),
        ("aten::nonzero", "composite"),
        ("aten::linalg_eig", "host"),
        ("aten::matmul", "composed"),
    ],
)
def test_show_says_how_an_overload_runs(overload, how):
    shown = _run("show", overload)
    (line,) = (x for x in shown.output.splitlines() if x.split()[:1] == [overload])
    assert line.split()[1] == how


def test_show_of_an_unknown_operator_fails_and_says_so():
    shown = _run("show", "aten::no_such_operator")
    assert shown.exit_code == 1
    assert "has no operator aten::no_such_operator" in shown.output + shown.stderr


def test_scaffold_of_a_served_overload_is_refused():
    with pytest.raises(ValueError, match="has a row already: it is native"):
        make_scaffold("aten::add.Tensor", "arithmetic")


def test_scaffold_has_the_schemas_arguments_and_defaults():
    scaffold = make_scaffold(UNSERVED, "fresh")
    (function,) = ast.parse(scaffold.function).body
    schema = torch._C._get_schema(UNSERVED, "")
    assert [a.arg for a in function.args.args] == [a.name for a in schema.arguments]
    assert UNSERVED in scaffold.row


def test_scaffold_added_to_a_family_can_be_imported_and_asks_for_its_result(tmp_path):
    for folder in ("src/torchtpu_core/lowering", "tests/lowering"):
        (tmp_path / folder).mkdir(parents=True)
    source, test = add_to_family(make_scaffold(UNSERVED, "fresh"), tmp_path)
    spec = importlib.util.spec_from_file_location("fresh_family", source)
    family = importlib.util.module_from_spec(spec)
    sys.modules["fresh_family"] = family
    try:
        spec.loader.exec_module(family)
    finally:
        del sys.modules["fresh_family"]
    (row,) = family.TABLE
    assert row.overload == UNSERVED
    with pytest.raises(UnsupportedOpError, match="being written"):
        row.function(None)
    assert "database_samples" in test.read_text()


def test_scaffold_added_to_a_family_that_exists_keeps_its_rows(tmp_path):
    for folder in ("src/torchtpu_core/lowering", "tests/lowering"):
        (tmp_path / folder).mkdir(parents=True)
    path = tmp_path / "src/torchtpu_core/lowering/fresh.py"
    path.write_text(
        "from __future__ import annotations\n\n"
        "from torchtpu_core.lowering.table import Lowering, host, native\n\n"
        "TABLE: tuple[Lowering, ...] = (\n"
        '    host("aten::linalg_eig", "it has a reason"),\n)\n'
    )
    add_to_family(make_scaffold(UNSERVED, "fresh"), tmp_path)
    table = ast.parse(path.read_text()).body[-1]
    rows = [row.args[0].value for row in table.value.elts]
    assert rows == ["aten::linalg_eig", UNSERVED]
