# SPDX-License-Identifier: Apache-2.0
"""What a user has once the plugin is installed: nothing to import, nothing to configure."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from torchtpu_core.hardware.registry import chips

RunPython = Callable[..., "subprocess.CompletedProcess[str]"]

TRAIN = """
import torch
from torchtpu_plugin_example import softcap

x = torch.linspace(-6, 6, 13)
on_cpu = x.clone().requires_grad_()
on_tpu = x.to("tpu").requires_grad_()
for v in (on_cpu, on_tpu):
    softcap(v, 2.0).square().sum().backward()
torch.testing.assert_close(softcap(on_tpu, 2.0).cpu(), softcap(on_cpu, 2.0))
torch.testing.assert_close(on_tpu.grad.cpu(), on_cpu.grad)
"""
DEVICE_NAME = "import torch; torch.empty(1, device='tpu'); print(torch.tpu.get_device_name())"
COMMAND = "from torchtpu_core.cli import main; main()"


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    """The output of a process that must have succeeded, without a warning about the plugin."""
    assert done.returncode == 0, done.stdout + done.stderr
    assert "plugin 'example'" not in done.stderr
    return done.stdout


def test_operator_trains_on_tpu_without_a_host_fallback(run_python: RunPython) -> None:
    succeeded(run_python(TRAIN, TORCH_TPU_FALLBACK="error"))


def test_chip_can_be_a_target(run_python: RunPython) -> None:
    output = succeeded(run_python(DEVICE_NAME, TORCH_TPU_TARGET="v5e-2xhbm:2x2"))
    assert output.strip() == "TPU v5e with 2x HBM bandwidth"


@pytest.mark.parametrize(("chip", "factor"), [("v5e", 1), ("v5e-2xhbm", 2)])
def test_command_prints_the_ridge_of_the_roofline(
    run_python: RunPython, chip: str, factor: int
) -> None:
    v5e = chips().get("v5e")
    ridge = v5e.figure("peak_bf16_flops_per_s") / (factor * v5e.figure("hbm_bytes_per_s"))
    output = succeeded(run_python(COMMAND, "ridge", chip))
    assert output.strip() == f"{chip}: {ridge:.0f} bf16 flops per byte of HBM traffic"


def test_command_with_unknown_chip_fails_with_the_known_ones(run_python: RunPython) -> None:
    done = run_python(COMMAND, "ridge", "v5x")
    assert done.returncode == 1
    assert "Known chips:" in done.stderr


def test_disabled_plugin_adds_nothing(run_python: RunPython) -> None:
    done = run_python(
        DEVICE_NAME, TORCH_TPU_TARGET="v5e-2xhbm:2x2", TORCH_TPU_DISABLE_PLUGINS="example"
    )
    assert done.returncode != 0
    assert "'v5e-2xhbm' is not a known chip" in done.stderr
