# SPDX-License-Identifier: Apache-2.0
"""The command `torchtpu`: what it prints and its exit codes."""

from __future__ import annotations

import csv
import io

import pytest
import typer
from torchtpu_core import env_vars, plugins
from torchtpu_core.cli import device_checks, installation, make_app
from torchtpu_core.cli import doctor as doctor_module
from torchtpu_core.cli.coverage import all_rows
from torchtpu_core.cli.findings import Level
from torchtpu_core.hookspecs import hookimpl
from typer.testing import CliRunner


def _run(*arguments, app=None):
    return CliRunner().invoke(app or make_app(), list(arguments))


def test_help_lists_the_commands():
    shown = _run("--help").output
    assert all(name in shown for name in ("doctor", "plugins", "env", "coverage"))


def test_help_of_plan_names_the_extra_of_the_compiler():
    assert "[tpu]" in _run("plan", "--help").output


def test_plugins_lists_records():
    shown = _run("plugins")
    assert shown.exit_code == 0
    for record in plugins.records():
        assert record.name in shown.output
        assert record.status in shown.output


def test_env_lists_every_variable_with_its_meaning():
    shown = _run("env").output
    for row in env_vars.table():
        assert row.name in shown
        assert row.meaning in shown


def test_env_shows_what_is_set(monkeypatch):
    monkeypatch.setenv("TORCH_TPU_LOG", "flushes")
    line = next(x for x in _run("env").output.splitlines() if x.startswith("TORCH_TPU_LOG"))
    assert line.split()[1] == "flushes"


def test_coverage_lists_each_row_once():
    shown = _run("coverage", "--layout", "csv")
    rows = list(csv.DictReader(io.StringIO(shown.output)))
    assert [row["overload"] for row in rows] == sorted(row.overload for _, row in all_rows())
    assert len({row["overload"] for row in rows}) == len(rows)
    assert all(row["why"] for row in rows)


def test_coverage_filters_by_pattern_and_kind():
    shown = _run("coverage", "linalg_eig", "--kind", "host").output
    assert "aten::linalg_eig " in shown
    assert "no eigensolver" in shown
    assert "aten::add.Tensor" not in shown


def test_coverage_markdown_is_a_table():
    lines = _run("coverage", "aten::gather", "--layout", "markdown").output.splitlines()
    assert lines[:2] == ["| overload | how | from | why |", "| --- | --- | --- | --- |"]
    assert lines[2].startswith("| aten::gather | native | torchtpu-core |")


def test_coverage_of_an_unknown_kind_is_refused():
    assert _run("coverage", "--kind", "magic").exit_code == 2


def test_doctor_finds_no_error_here():
    shown = _run("doctor")
    assert shown.exit_code == 0, shown.output
    assert "No errors." in shown.output
    assert "arange(3) + 1 gives [1, 2, 3]" in shown.output


def _errors(findings):
    return {f.topic: f for f in findings if f.level is Level.ERROR}


def test_doctor_exits_with_1_on_an_error(monkeypatch):
    monkeypatch.setattr(installation, "version_of", _other_torch)
    shown = _run("doctor")
    assert shown.exit_code == 1
    assert "pip install 'torch" in shown.output


def _other_torch(name, real=installation.version_of):
    return "2.9.1" if name == "torch" else real(name)


def test_doctor_refuses_a_wrong_torch(monkeypatch):
    monkeypatch.setattr(installation, "version_of", _other_torch)
    found = _errors(installation.versions())
    assert set(found) == {"torch"}
    assert "2.9.1 does not satisfy" in found["torch"].text


def test_doctor_refuses_parts_of_different_releases(monkeypatch):
    real = installation.version_of
    monkeypatch.setattr(
        installation, "version_of", lambda n: "0.0.9" if n == "torchtpu-eager" else real(n)
    )
    found = _errors(installation.versions())
    assert found["torchtpu-eager"].fix == f"pip install 'torchtpu-eager=={real('torchtpu-core')}'"


def test_doctor_names_a_part_that_is_missing(monkeypatch):
    real = installation.version_of
    monkeypatch.setattr(
        installation, "version_of", lambda n: None if n == "torchtpu-kernels" else real(n)
    )
    found = {f.topic: f for f in installation.versions()}["torchtpu-kernels"]
    assert found.level is Level.OK
    assert "pip install 'torchtpu-core[kernels]'" in found.text


@pytest.mark.parametrize("rival", ["torch-tpu", "torch-xla"])
def test_doctor_refuses_packages_for_the_same_device(monkeypatch, rival):
    real = installation.version_of
    monkeypatch.setattr(installation, "version_of", lambda n: "0.2.0" if n == rival else real(n))
    assert _errors(installation.conflicts())[rival].fix == f"pip uninstall {rival}"


def test_doctor_notices_another_torch_tpu_package(monkeypatch, tmp_path):
    other = tmp_path / "torch_tpu"
    other.mkdir()
    (other / "__init__.py").write_text("")
    import sys

    for name in [n for n in sys.modules if n.partition(".")[0] == "torch_tpu"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [f for f in sys.meta_path if "Editable" not in str(f)])
    assert str(other) in _errors(installation.conflicts())["torch_tpu"].text


def test_doctor_reports_a_wrong_variable(monkeypatch):
    monkeypatch.setenv("TORCH_TPU_TARGTE", "v5e:2x2")
    env_vars.reset()
    try:
        found = _errors(device_checks.settings())
    finally:
        monkeypatch.delenv("TORCH_TPU_TARGTE")
        env_vars.reset()
    assert "TORCH_TPU_TARGET" in found["environment"].text


def test_doctor_runs_every_kind_of_check():
    topics = {finding.topic for finding in doctor_module.examine()}
    assert {"python", "torch", "jax", "libtpu", "compiler", "environment", "registration",
            "target", "device"} <= topics  # fmt: skip


@pytest.fixture
def plugin():
    """Registers a plugin with one hook for the test."""
    registered = []

    def register(function):
        holder = type("Third", (), {"torchtpu_cli_commands": staticmethod(hookimpl(function))})
        plugins.manager().register(holder, name="third")
        registered.append(holder)

    yield register
    for holder in registered:
        plugins.manager().unregister(holder)


def test_plugin_adds_a_command(plugin):
    def add(app: typer.Typer) -> None:
        app.command("hello")(lambda: typer.echo("from a plugin"))

    plugin(add)
    assert _run("hello").output == "from a plugin\n"


def test_plugin_that_breaks_is_a_warning(plugin):
    def add() -> None:
        raise KeyError("mine")

    plugin(add)
    with pytest.warns(
        plugins.PluginWarning, match="'third': its hook torchtpu_cli_commands raised"
    ):
        app = make_app()
    assert _run("env", app=app).exit_code == 0
