# SPDX-License-Identifier: Apache-2.0
"""The facade `torch_tpu` re-exports, imports nothing early, and names missing extras."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys

import pytest
import torch
import torch_tpu
from torchtpu_core.errors import MissingExtraError

_EXTRAS = {
    "pallas": ("kernels", "torchtpu_kernels"),
    "compile": ("compile", "torchtpu_compile"),
    "distributed": ("distributed", "torchtpu_distributed"),
}


@pytest.fixture
def without(monkeypatch):
    """Hides a distribution's package, as if it were not installed."""

    def hide(package, submodule):
        for name in [n for n in sys.modules if n.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.delitem(sys.modules, f"torch_tpu.{submodule}", raising=False)
        monkeypatch.delitem(vars(torch_tpu), submodule, raising=False)  # no __getattr__

        class Hidden:
            @staticmethod
            def find_spec(name, path=None, target=None):
                if name.partition(".")[0] == package:
                    raise ModuleNotFoundError(f"No module named {name!r}", name=package)

        monkeypatch.setattr(sys, "meta_path", [Hidden, *sys.meta_path])

    return hide


def test_names_are_torch_tpus():
    assert torch_tpu.set_eager_mode is torch.tpu.set_eager_mode
    assert torch_tpu.EagerMode is torch.tpu.EagerMode
    assert torch_tpu.set_target is torch.tpu.set_target
    assert torch_tpu.eager_mode is torch.tpu.eager_mode


def test_version_is_the_distributions():
    assert torch_tpu.__version__ == importlib.metadata.version("torchtpu-core")


@pytest.mark.parametrize("submodule", _EXTRAS)
def test_submodule_re_exports_what_it_lists(submodule):
    pytest.importorskip(_EXTRAS[submodule][1], reason="an optional distribution")
    module = importlib.import_module(f"torch_tpu.{submodule}")
    assert getattr(torch_tpu, submodule) is module
    assert module.__all__
    for name in module.__all__:
        owner = getattr(module, name).__module__
        assert owner.startswith((_EXTRAS[submodule][1], "torchtpu_core.tpu"))


@pytest.mark.parametrize("submodule", _EXTRAS)
def test_missing_extra_gives_the_pip_command(without, submodule):
    extra, package = _EXTRAS[submodule]
    without(package, submodule)
    command = rf"pip install 'torchtpu-core\[{extra}\]'"
    with pytest.raises(MissingExtraError, match=command):
        getattr(torch_tpu, submodule)
    with pytest.raises(ImportError, match=command):
        importlib.import_module(f"torch_tpu.{submodule}")


def test_code_that_inductor_writes_for_the_device_names_the_missing_extra(without):
    without("torchtpu_compile", "_internal")
    with pytest.raises(MissingExtraError, match=r"pip install 'torchtpu-core\[compile\]'"):
        importlib.import_module("torch_tpu._internal")


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'palas'"):
        torch_tpu.palas


def test_dir_lists_what_can_be_used():
    assert {"pallas", "compile", "distributed", "__version__", "set_target"} <= set(dir(torch_tpu))


def test_import_brings_no_optional_distribution():
    import subprocess

    code = (
        "import sys, torch_tpu; "
        "print(sorted({'jax', 'torchtpu_kernels', 'torchtpu_compile'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
