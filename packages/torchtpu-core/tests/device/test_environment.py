# SPDX-License-Identifier: Apache-2.0
"""The TORCH_TPU_* variables take effect, and wrong ones are errors that help."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_SHOW = """
    import torch
    try:
        torch.ones(2, device="tpu").add_(1)
        print(torch.tpu.device_count(), torch.tpu.eager_mode.name,
              torch.tpu.get_device_properties().target)
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("v5e:2x2", "4 FUSED v5e:2x2"),
        ("v5p:2x2x1", "4 FUSED v5p:2x2x1"),
        ("cpu", "1 FUSED cpu"),
    ],
)
def test_target_decides_the_devices(run_python, target, shown):
    assert run_python(_SHOW, TORCH_TPU_TARGET=target).stdout == shown + "\n"


def test_unknown_target_suggests_one(run_python):
    out = run_python(_SHOW, TORCH_TPU_TARGET="v5x:2x2").stdout
    assert "TargetError" in out
    assert "v5e" in out


@pytest.mark.parametrize("asked", ["torch.tpu", "torch.accelerator"])
def test_asking_for_a_device_of_an_impossible_target_tells_why_there_is_none(run_python, asked):
    ran = run_python(
        f"import torch\nprint({asked}.is_available(), {asked}.device_count())",
        TORCH_TPU_TARGET="v5e:1x2",
    )
    assert ran.stdout == "False 0\n"
    told = "<string>:2: UserWarning: there is no tpu device: v5e does not come in a slice of 1x2"
    assert ran.stderr.count(told) == 1


@pytest.mark.parametrize(
    ("value", "mode"), [("debug", "DEBUG"), ("DEFER_NEVER", "STRICT"), ("Fused", "FUSED")]
)
def test_eager_mode_is_the_start_value(run_python, value, mode):
    assert f"4 {mode} " in run_python(_SHOW, TORCH_TPU_EAGER_MODE=value).stdout


def test_wrong_eager_mode_lists_the_allowed_ones(run_python):
    out = run_python(_SHOW, TORCH_TPU_EAGER_MODE="lazy").stdout
    assert out.startswith("EnvironmentVariableError")
    assert "debug, strict, fused" in out


def test_unknown_variable_suggests_the_nearest(run_python):
    out = run_python(_SHOW, TORCH_TPU_TARGTE="v5e:2x2").stdout
    assert out.startswith("EnvironmentVariableError")
    assert "Did you mean 'TORCH_TPU_TARGET'?" in out


def test_fallback_error_names_the_op_and_line(run_python):
    code = """
        import torch
        lib = torch.library.Library("mine", "DEF")
        lib.define("host_only(Tensor x) -> Tensor")
        lib.impl("host_only", lambda x: x + 1, "CPU")
        try:
            torch.ops.mine.host_only(torch.ones(2, device="tpu"))
        except RuntimeError as error:
            print(type(error).__name__, error)
    """
    out = run_python(code, TORCH_TPU_FALLBACK="error").stdout
    assert out.startswith("FallbackRefusedError mine::host_only at <string>:7")
    assert "FallbackWarning" in run_python(code).stderr
    assert run_python(code, TORCH_TPU_FALLBACK="quiet").stderr == ""


def test_log_of_compiles_names_programs(run_python):
    err = run_python(_SHOW, TORCH_TPU_LOG="compiles", TORCH_TPU_EAGER_MODE="strict").stderr
    assert "<TorchTpu/compiles> add" in err


def test_set_target_before_first_use(run_python):
    done = run_python(
        """
        import torch
        torch.tpu.set_target("v5p:2x2x1")
        print(torch.ones(2, device="tpu").device, torch.tpu.get_device_name())
        try:
            torch.tpu.set_target("cpu")
        except ValueError as error:
            print(error)
        """
    )
    assert "tpu:0 TPU v5p" in done.stdout
    assert "TORCH_TPU_TARGET=cpu before starting Python" in done.stdout


def test_numerics_of_a_chip_on_the_plain_cpu_target_are_refused(run_python) -> None:
    code = "import torch; torch.ones(2, device='tpu')"
    done = run_python(code, check=False, TORCH_TPU_NUMERICS="tpu", TORCH_TPU_TARGET="cpu")
    assert "EnvironmentVariableError: TORCH_TPU_NUMERICS=tpu imitates" in done.stderr


def test_log_of_flushes_names_ops_reason_and_line(run_python) -> None:
    code = "import torch\nx = torch.ones(2, device='tpu') * 3\nprint((x + 1).tolist())"
    err = run_python(code, TORCH_TPU_LOG="flushes", TORCH_TPU_EAGER_MODE="fused").stderr
    assert "<TorchTpu/flushes> 3 ops, op by op, ended by host read at <string>:3" in err


def test_log_of_recompiles_names_the_op_and_its_operands() -> None:
    script = "import torch\nfor n in (2, 3): torch.ones(n, device='tpu').cosh_()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TORCH_TPU_LOG": "recompiles", "TORCH_TPU_EAGER_MODE": "strict"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert "<TorchTpu/recompiles> cosh_, program 2: float32[3]" in done.stderr


def test_device_that_was_chosen_is_that_of_fake_tensors_and_of_a_mesh_before_the_start(run_python):
    done = run_python(
        """
        import torch
        from torch._subclasses import FakeTensorMode
        torch.tpu.set_device(1)
        with FakeTensorMode():
            print(torch.empty(2, device="tpu").device, end=" ")
        from torch import distributed as dist
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.init_device_mesh("tpu", (1,))
        print(torch.tpu.current_device(), torch.tpu._initialized)
        """,
        TORCH_TPU_TARGET="v5e:2x2",
        LOCAL_RANK="0",
    )
    assert done.stdout == "tpu:1 1 False\n"


def test_device_index_chosen_for_the_accelerator_counts_and_a_backward_pass_on_the_cpu_does_not(
    run_python,
):
    done = run_python(
        """
        import torch
        torch.ones(2, requires_grad=True).sum().backward()  # its threads are for all devices
        print(torch.tpu.is_initialized(), end=" ")
        torch.accelerator.set_device_index(0)
        print(torch.tpu.is_initialized(), torch.tpu._initialized)
        """,
        TORCH_TPU_TARGET="v5e:2x2",
    )
    assert done.stdout == "False True False\n"


def test_device_that_was_asked_for_is_that_of_all_threads_and_of_their_meshes(run_python):
    done = run_python(
        """
        import threading
        import torch
        from torch import distributed as dist
        torch.tpu.current_device()
        print(torch.tpu.is_initialized(), end=" ")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.device_mesh.get_rank = lambda: 3  # the mesh would choose device 3
        def mesh():
            dist.init_device_mesh("tpu", (1,))
            print(torch.tpu.current_device(), end=" ")
        thread = threading.Thread(target=mesh)
        thread.start()
        thread.join()
        """,
        TORCH_TPU_TARGET="v5e:2x2",
    )
    assert done.stdout == "False 0 "


@pytest.mark.parametrize(("environment", "chosen"), [({"LOCAL_RANK": "2"}, 2), ({}, 3)])
def test_device_that_a_rank_has_asked_for_is_still_chosen_by_its_mesh(
    run_python, environment, chosen
):
    done = run_python(
        """
        import torch
        from torch import distributed as dist
        print(torch.tpu.current_device(), end=" ")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.device_mesh.get_rank = lambda: 3
        dist.init_device_mesh("tpu", (1,))
        print(torch.tpu.current_device())
        """,
        TORCH_TPU_TARGET="v5e:2x2",
        **environment,
    )
    assert done.stdout == f"0 {chosen}\n"
