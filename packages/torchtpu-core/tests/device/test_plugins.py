# SPDX-License-Identifier: Apache-2.0
"""Plugins: found by entry point, loaded one by one; a broken one is one warning."""

from __future__ import annotations

import textwrap

import pytest


@pytest.fixture
def install(tmp_path):
    """Writes a distribution with one plugin module to a directory for PYTHONPATH."""

    def write(name, code):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code))
        meta = tmp_path / f"{name}-1.0.dist-info"
        meta.mkdir()
        (meta / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (meta / "entry_points.txt").write_text(f"[torchtpu]\n{name} = {name}\n")
        return str(tmp_path)

    return write


_USE = """
    import torch
    print(torch.ones(2, device="tpu").add_(1).tolist())
    from torchtpu_core.plugins import records
    print([(r.name, r.status) for r in records() if r.name == "third"])
"""


@pytest.mark.parametrize(
    "code",
    [
        "import no_such_module",
        "raise SystemError('broken')",
        "from torchtpu_core.hookspecs import hookimpl\n@hookimpl\ndef torchtpu_no_such_hook(): ...",
        "from torchtpu_core.hookspecs import hookimpl\n"
        "@hookimpl\ndef torchtpu_register_lowerings(no_such_argument): ...",
    ],
)
def test_plugin_that_cannot_load_is_one_warning(install, run_python, code):
    done = run_python(_USE, PYTHONPATH=install("third", code))
    assert "[2.0, 2.0]\n[('third', 'failed')]" in done.stdout
    assert done.stderr.count("PluginWarning") == 1
    assert "TORCH_TPU_DISABLE_PLUGINS=third" in done.stderr


def test_plugin_whose_hook_raises_is_one_warning(install, run_python):
    path = install(
        "third",
        """
        from torchtpu_core.hookspecs import hookimpl
        @hookimpl
        def torchtpu_register_lowerings():
            raise KeyError("mine")
        """,
    )
    done = run_python(_USE, PYTHONPATH=path)
    assert "[2.0, 2.0]" in done.stdout
    assert done.stderr.count("PluginWarning") == 1
    assert "'third': its hook torchtpu_register_lowerings raised" in done.stderr


def test_second_row_for_an_overload_is_refused(install, run_python):
    path = install(
        "third",
        """
        from torchtpu_core.hookspecs import hookimpl
        from torchtpu_core.lowering.table import native
        @hookimpl
        def torchtpu_register_lowerings():
            return [native("aten::add.Tensor", lambda x, y, alpha=1: x)]
        """,
    )
    done = run_python(_USE, PYTHONPATH=path)
    assert "[2.0, 2.0]" in done.stdout
    assert "aten::add.Tensor has two lowerings" in done.stderr


def test_disabled_plugin_is_not_imported(install, run_python):
    path = install("third", "raise SystemError('broken')")
    done = run_python(_USE, PYTHONPATH=path, TORCH_TPU_DISABLE_PLUGINS="third")
    assert "[('third', 'disabled')]" in done.stdout
    assert done.stderr == ""


def test_plugin_adds_an_operator(install, run_python):
    path = install(
        "third",
        """
        import torch
        from torchtpu_core.hookspecs import hookimpl
        from torchtpu_core.lowering.table import native
        library = torch.library.Library("third", "DEF")
        library.define("triple(Tensor x) -> Tensor")
        library.impl("triple", lambda x: torch.empty_like(x), "Meta")
        @hookimpl
        def torchtpu_register_lowerings():
            return [native("third::triple", lambda x: x * 3)]
        """,
    )
    done = run_python(
        """
        import torch
        torch.tpu.init()
        print(torch.ops.third.triple(torch.ones(2, device="tpu")).tolist())
        """,
        PYTHONPATH=path,
    )
    assert done.stdout == "[3.0, 3.0]\n"
    assert done.stderr == ""


def test_plugin_brings_an_execution_mode(install, run_python):
    path = install(
        "third",
        """
        from torchtpu_core.execution import ExecutionMode
        from torchtpu_core.hookspecs import hookimpl
        class Watch:
            def before(self, op, args):
                print("before", op)
            def after(self, token, results):
                print("after", results[0].tolist())
            def failed(self, token, error):
                print("failed", error)
        @hookimpl
        def torchtpu_execution_modes():
            return [ExecutionMode(name="watched", synchronous=True, observer=Watch)]
        """,
    )
    done = run_python(
        """
        import torch
        torch.tpu.init()
        from torchtpu_core.runtime import modes
        x = torch.ones(2, device="tpu")
        modes.enter("watched")
        x * 3
        """,
        PYTHONPATH=path,
    )
    assert done.stdout == "before aten::mul.Tensor\nafter [3.0, 3.0]\n"


def test_disabling_a_plugin_that_is_not_installed_warns_with_the_nearest_name(run_python):
    code = "from torchtpu_core import plugins; print({r.name: r.status for r in plugins.records()})"
    done = run_python(code, TORCH_TPU_DISABLE_PLUGINS="eagr")
    assert "no such plugin is installed. Did you mean 'eager'?" in done.stderr
    assert "'eager': 'loaded'" in done.stdout
