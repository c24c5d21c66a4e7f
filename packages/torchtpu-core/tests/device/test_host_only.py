# SPDX-License-Identifier: Apache-2.0
"""What XLA's TPU compiler does not take runs on the host of a real TPU, and says so.

There is no TPU here: the test says that there is one, and the device's own programs are the CPU's.
"""

from __future__ import annotations

import jax
import pytest
import torch
from torchtpu_core.errors import FallbackRefusedError, HostOnlyError, UnsupportedOpError
from torchtpu_core.lowering import mxu
from torchtpu_core.lowering.interpreter import run_overload
from torchtpu_core.runtime import fallbacks, host_only, tables
from torchtpu_core.runtime.fallbacks import FallbackWarning


@pytest.fixture
def real_tpu(monkeypatch):
    """The process believes that its device is a real TPU."""
    monkeypatch.setattr(host_only, "is_real_tpu", lambda: True)
    fallbacks.counts.clear()


CALLS = {
    "solve": lambda x: torch.linalg.solve(x @ x.mT + 3 * torch.eye(3, device=x.device), x),
    "svd": lambda x: torch.linalg.svdvals(x),
    "in place": lambda x: x.clone().copysign_(-x),
    "out": lambda x: torch.digamma(x.abs() + 1, out=torch.empty_like(x)),
    "quotient": lambda x: x // 0.3,
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore::torchtpu_core.runtime.fallbacks.FallbackWarning")
def test_call_and_gradient_of_doubles_equal_cpus_and_are_counted(real_tpu, name) -> None:
    x = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.9
    results = []
    for device in ("cpu", "tpu"):
        leaf = x.detach().to(device).requires_grad_(name not in ("in place", "out", "quotient"))
        result = CALLS[name](leaf)
        if leaf.requires_grad:
            result.sum().backward()
        results.append((result, leaf.grad))
    for actual, expected in zip(results[1], results[0], strict=True):
        if expected is not None:
            assert actual.device.type == "tpu"
            torch.testing.assert_close(actual.cpu(), expected)
    assert fallbacks.counts


def test_floats_stay_on_the_device(real_tpu) -> None:
    x = torch.randn(3, 3, device="tpu")
    (torch.linalg.inv(x) @ torch.fft.fft(x).real // 2).cpu()
    assert not fallbacks.counts


def test_warning_says_why_and_the_policy_holds(real_tpu, monkeypatch) -> None:
    x = torch.randn(3, 3, device="tpu", dtype=torch.float64)
    with pytest.warns(FallbackWarning, match=r"signbit.* runs on the host: XLA's TPU"):
        torch.signbit(x)
    settings = fallbacks.settings()
    refusing = type("Refusing", (), {"fallback": fallbacks.Fallback.ERROR, "log": settings.log})
    monkeypatch.setattr(fallbacks, "settings", lambda: refusing)
    with pytest.raises(FallbackRefusedError, match="the sign or the exponent of a float64"):
        torch.signbit(x)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.cpu().to(torch.complex128).to("tpu"),
        lambda x: torch.zeros(3, dtype=torch.complex128, device="tpu") + 1,
        lambda x: x.to(torch.complex128),
        lambda x: torch.complex(x, x),
        lambda x: x * 1j,
        lambda x: torch.block_diag(x, x.to(torch.complex64)),
        lambda x: torch.fft.rfft(x),
    ],
)
@pytest.mark.filterwarnings("ignore::torchtpu_core.runtime.fallbacks.FallbackWarning")
def test_doubles_that_are_complex_are_refused_with_the_way_out(real_tpu, make) -> None:
    x = torch.randn(3, 3, device="tpu", dtype=torch.float64)
    with pytest.raises(UnsupportedOpError, match=r"ends the process .* use complex64"):
        make(x)


def test_program_for_a_tpu_refuses_what_its_compiler_does_not_take() -> None:
    op = torch.ops.aten._fft_r2c.default
    with jax.enable_x64(True), mxu.for_platform("tpu"):
        x = jax.numpy.ones((4,), "float64")
        with pytest.raises(HostOnlyError, match=r"aten::_fft_r2c cannot run on tpu: XLA's TPU"):
            run_overload(op, [x, [0], 0, True], {}, tables.without_a_device())
        run_overload(op, [x.astype("float32"), [0], 0, True], {}, tables.without_a_device())
