# SPDX-License-Identifier: Apache-2.0
"""Calls of torch that need a part which is not installed say how to install it."""

from __future__ import annotations

import pytest
import torch
from torchtpu_core import compiler, plugins
from torchtpu_core.errors import MissingExtraError


def test_backend_without_a_compiler_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "collect", lambda hook: [])
    with pytest.raises(MissingExtraError, match=r"pip install 'torchtpu-core\[compile\]'"):
        compiler.tpu  # what loading the entry point does


def test_backend_whose_plugin_is_turned_off_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "collect", lambda hook: [])
    monkeypatch.setattr("torchtpu_core.env_vars.read", lambda name: frozenset({"compile"}))
    with pytest.raises(MissingExtraError, match="TORCH_TPU_DISABLE_PLUGINS has turned off"):
        compiler.tpu  # what loading the entry point does


def test_backend_of_torch_compile_is_the_plugins() -> None:
    backend = pytest.importorskip("torchtpu_compile.backend", reason="an optional distribution")
    assert compiler.tpu is backend.tpu
    assert torch._dynamo.lookup_backend("tpu") is backend.tpu


@pytest.mark.parametrize("backend", ["tpu", "tpu_dist", None])
def test_process_group_without_torchtpu_distributed_names_the_extra(fresh_python, backend) -> None:
    done = fresh_python(
        f"""
        import sys
        sys.modules["torchtpu_distributed"] = None  # as if it were not installed
        import torch
        from torch import distributed as dist
        from torchtpu_core._autoload import autoload
        autoload()
        try:
            dist.init_process_group({backend!r}, store=dist.HashStore(), rank=0, world_size=1)
        except RuntimeError as error:
            print(error)
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert "pip install 'torchtpu-core[distributed]'" in done.stdout


def test_group_of_gloo_needs_no_torchtpu_distributed(fresh_python) -> None:
    done = fresh_python(
        """
        import sys
        sys.modules["torchtpu_distributed"] = None
        import torch
        from torch import distributed as dist
        from torchtpu_core._autoload import autoload
        autoload()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        x = torch.ones(2)
        dist.all_reduce(x)
        print(x.tolist())
        dist.destroy_process_group()  # else gloo's thread may free `x` while Python ends: SIGABRT
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert done.stdout == "[1.0, 1.0]\n"
