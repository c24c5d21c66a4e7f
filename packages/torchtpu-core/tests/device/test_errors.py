# SPDX-License-Identifier: Apache-2.0
"""Bad input is refused as on CPU: same class, a clear message, and nothing is changed."""

from __future__ import annotations

import inspect

import pytest
import torch
from torchtpu_core.errors import DeferredIndexError, MissingExtraError

F = torch.nn.functional


def _t(*shape, **options):
    return torch.ones(*shape, device="tpu", **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: torch.ones(2, 3, device=d) @ torch.ones(2, 3, device=d), "cannot be multiplied"),
        (lambda d: torch.ones(2, device=d) + torch.ones(3, device=d), "must match"),
        (lambda d: torch.cat([torch.ones(2, 2, device=d), torch.ones(3, 3, device=d)]), "Sizes"),
        (lambda d: torch.ones(2, device=d).view(3), "invalid for input"),
        (lambda d: torch.ones(2, device=d).sum(3), "Dimension out of range"),
        (lambda d: torch.ones(2, device=d)[5], "out of bounds"),
        (lambda d: torch.ones(2, 2, device=d).squeeze(0).permute(0), "permute"),
        (lambda d: torch.arange(0, 5, -1, device=d), "bound"),
        (lambda d: torch.ones(2, device=d).expand(3), "expanded size"),
        (lambda d: torch.empty(-1, device=d), "negative"),
        (lambda d: torch.ones(2, dtype=torch.bool, device=d) - True, "not supported"),
        (lambda d: torch.zeros(2, dtype=torch.int64, device=d).mean(), "dtype"),
        (lambda d: F.conv2d(torch.ones(1, 2, 4, 4, device=d), torch.ones(1, 3, 2, 2, device=d)),
         "channels"),
        (lambda d: torch.ones(2, 2, device=d, requires_grad=True).int().requires_grad_(),
         "floating point"),
        (lambda d: torch.linalg.cholesky(torch.ones(2, 3, device=d)), "square"),
        (lambda d: torch.stack([torch.ones(2, device=d), torch.ones(3, device=d)]), "equal size"),
        (lambda d: torch.ones(0, device=d).max(), "specify the 'dim'|numel"),
    ],
)  # fmt: skip
def test_mistake_raises_cpus_error(call, message):
    with pytest.raises(Exception, match=message) as expected:
        call("cpu")
    with pytest.raises(Exception, match=message) as actual:
        call("tpu")
    assert issubclass(actual.type, expected.type)


def test_dtypes_that_do_not_mix_are_refused():
    with pytest.raises(RuntimeError, match="dtype"):
        _t(2, 2) @ _t(2, 2, dtype=torch.float64)


def test_operand_on_the_host_is_refused_for_matmul():
    with pytest.raises(RuntimeError, match=r"device"):
        _t(2, 2) @ torch.ones(2, 2)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, i: x[i],
        lambda x, i: x.index_select(0, i),
        lambda x, i: x.gather(0, i),
        lambda x, i: x.take(i),
        lambda x, i: F.embedding(i, x.reshape(4, 1)),
        lambda x, i: x.scatter(0, i, 5.0),
        lambda x, i: x.index_add(0, i, x[:1]),
        lambda x, i: F.one_hot(i, 4),
        lambda x, i: F.nll_loss(x.reshape(1, 4), i),
    ],
)
@pytest.mark.parametrize("value", [4, 1000, -5])
def test_index_out_of_range_raises_never_clamps(call, value):
    x, i = torch.arange(4.0), torch.tensor([value])
    with pytest.raises((IndexError, RuntimeError)):
        call(x, i)
    with pytest.raises((IndexError, RuntimeError)):
        call(x.to("tpu"), i.to("tpu"))
        torch.tpu.synchronize()


def test_deferred_error_names_the_line_and_the_mistake():
    x, i = torch.arange(4.0, device="tpu"), torch.tensor([4], device="tpu")
    line = inspect.currentframe().f_lineno + 1
    y = x[i]
    with pytest.raises(
        DeferredIndexError, match=rf"out of bounds for dimension 0 with size 4.*{__file__}:{line}"
    ):
        y.cpu()


def test_deferred_error_of_backward_names_the_forward_line():
    weight = torch.ones(4, 2, device="tpu", requires_grad=True)
    line = inspect.currentframe().f_lineno + 1
    out = F.embedding(torch.tensor([9], device="tpu"), weight)
    with pytest.raises(IndexError, match=rf":{line} in test_deferred_error_of_backward"):
        out.sum().backward()
        torch.tpu.synchronize()


def test_deferred_error_is_raised_once():
    x, i = torch.arange(4.0, device="tpu"), torch.tensor([4], device="tpu")
    x[i]
    with pytest.raises(IndexError):
        torch.tpu.synchronize()
    torch.tpu.synchronize()


def test_unsupported_layout_is_named():
    with pytest.raises((RuntimeError, NotImplementedError), match=r"(?i)sparse"):
        _t(2, 2).to_sparse()


def test_unsupported_quantised_dtype_is_named():
    with pytest.raises((RuntimeError, NotImplementedError), match=r"(?i)quant|qint|QUInt"):
        torch.quantize_per_tensor(_t(2), 0.1, 0, torch.quint8)


def test_data_pointer_cannot_be_read_by_the_host():
    import ctypes
    import subprocess
    import sys

    address = _t(2).data_ptr()
    assert address >= 2**60
    done = subprocess.run(
        [sys.executable, "-c", f"import ctypes; ctypes.string_at({address}, 1)"],
        capture_output=True,
        check=False,
    )
    assert done.returncode != 0  # it faults in a process of its own, it never returns bytes
    assert ctypes.sizeof(ctypes.c_void_p) == 8


def test_missing_mode_package_gives_the_pip_command(run_python):
    done = run_python(
        """
        import torch
        x = torch.zeros(2, device="tpu")
        print(x.tolist(), x.cpu())
        try:
            x + 1
        except RuntimeError as error:
            print(error)
        """,
        TORCH_TPU_DISABLE_PLUGINS="eager",
    )
    assert "[0.0, 0.0] tensor([0., 0.])" in done.stdout
    assert "pip install 'torchtpu-core[eager]'" in done.stdout
    assert "TORCH_TPU_DISABLE_PLUGINS has turned off: eager" in done.stdout


def test_debug_without_the_package_gives_the_pip_command(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "torchtpu_eager.debug", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'torchtpu-core\[eager\]'"):
        torch.tpu.debug()
