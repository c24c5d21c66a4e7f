# SPDX-License-Identifier: Apache-2.0
"""Precision of matrix products on the device: what the user asked for, and when."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import torch

_SETTINGS = ("highest", "high", "medium")


def test_precision_changed_between_products_compiles_a_program_for_each():
    x = torch.randn(5, 7, device="tpu")
    torch.tpu.synchronize()
    for _ in range(2):
        before = torch.tpu.counters()["compiles"]
        for name in _SETTINGS:
            torch.set_float32_matmul_precision(name)
            torch.mm(x, x.t()).cpu()
        compiled = torch.tpu.counters()["compiles"] - before
    assert compiled == 0  # in the second round, of what the first compiled


def test_stream_of_products_and_other_operators_has_a_key():
    torch.tpu.set_eager_mode("fused")
    x = torch.ones(3, 3, device="tpu")
    for _ in range(4):
        made = ((x + 1) @ x).sum()
        assert made.item() == 54.0


_PRODUCTS = """
    import torch
    x = torch.linspace(0.1, 0.9, 64 * 64).reshape(64, 64)
    exact = x.double() @ x.double()
    for name in ("medium", "high", "highest"):
        torch.set_float32_matmul_precision(name)
        made = (x.to("tpu") @ x.to("tpu")).cpu().double()
        print(((made - exact).abs().max() / exact.abs().max()).item())
"""


def _errors(**environment: str) -> list[float]:
    import os

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_PRODUCTS)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "TORCH_TPU_TARGET": "v5e:1x1", **environment},
    )
    assert done.returncode == 0, done.stderr
    return [float(line) for line in done.stdout.split()]


def test_numerics_tpu_rounds_operands_to_bf16_passes():
    medium, high, highest = _errors(TORCH_TPU_NUMERICS="tpu")
    # One bf16 operand is off by up to 2**-9; two parts leave 2**-17, three 2**-25.
    assert 2**-14 < medium < 2**-7
    assert high < 2**-14
    assert highest < 2**-20


def test_numerics_exact_ignores_the_precision_on_a_simulated_device():
    assert max(_errors(TORCH_TPU_NUMERICS="exact")) < 2**-20
