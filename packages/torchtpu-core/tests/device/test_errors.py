# SPDX-License-Identifier: Apache-2.0
"""Bad input is refused as on CPU: same class, a clear message, and nothing is changed."""

from __future__ import annotations

import inspect
import traceback

import pytest
import torch
from torchtpu_core.errors import DeferredIndexError, MissingExtraError

F = torch.nn.functional
F32, D, L, B, C = torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64
H = torch.bfloat16


def _t(*shape, **options):
    return torch.ones(*shape, device="tpu", **options)


def _index(device, value=1, dtype=torch.int64):
    return torch.tensor([value], device=device, dtype=dtype)


#: Calls that CPU PyTorch refuses; `o` makes ones of some shape (and dtype) on a device.
_MISTAKES = {
    "mm of shapes that do not fit": lambda o, d: o(2, 3) @ o(2, 3),
    "mm of two dtypes": lambda o, d: o(2, 2) @ o(2, 2, t=D),
    "mv of two dtypes": lambda o, d: o(2, 2) @ o(2, t=D),
    "bmm of two dtypes": lambda o, d: o(1, 2, 2) @ o(1, 2, 2, t=D),
    "linear with a bias of another dtype": lambda o, d: F.linear(o(2, 2), o(2, 2), o(2, t=D)),
    "conv of two dtypes": lambda o, d: F.conv2d(o(1, 1, 3, 3), o(1, 1, 2, 2, t=D)),
    "conv with the wrong channels": lambda o, d: F.conv2d(o(1, 2, 4, 4), o(1, 3, 2, 2)),
    "conv kernel larger than its input": lambda o, d: F.conv2d(o(1, 1, 2, 2), o(1, 1, 5, 5)),
    "add of shapes that do not fit": lambda o, d: o(2) + o(3),
    "cat of shapes that do not fit": lambda o, d: torch.cat([o(2, 2), o(3, 3)]),
    "stack of shapes that differ": lambda o, d: torch.stack([o(2), o(3)]),
    "view of another size": lambda o, d: o(2).view(3),
    "sum over a missing dim": lambda o, d: o(2).sum(3),
    "number as index out of range": lambda o, d: o(2)[5],
    "arange the wrong way": lambda o, d: torch.arange(0, 5, -1, device=d),
    "expand of a dim that is not 1": lambda o, d: o(2).expand(3),
    "negative size": lambda o, d: torch.empty(-1, device=d),
    "minus of bools": lambda o, d: o(2, t=B) - o(2, t=B),
    "negative of bools": lambda o, d: -o(2, t=B),
    "relu of bools": lambda o, d: o(2, t=B).relu(),
    "mean of integers": lambda o, d: o(2, t=L).mean(),
    "softmax of integers": lambda o, d: o(2, t=L).softmax(0),
    "gelu of integers": lambda o, d: F.gelu(o(2, t=L)),
    "adaptive average of integers": lambda o, d: F.adaptive_avg_pool2d(o(1, 4, 4, t=L), 2),
    "adaptive maximum of integers": lambda o, d: F.adaptive_max_pool3d(o(1, 4, 4, 4, t=L), 2),
    "bits of floats": lambda o, d: o(2) & o(2),
    "shift of floats": lambda o, d: o(2) << 1,
    "order of complex numbers": lambda o, d: o(2, t=C) < 1,
    "maximum of complex numbers": lambda o, d: o(2, t=C).max(),
    "sort of complex numbers": lambda o, d: o(2, t=C).sort(),
    "clamp of complex numbers": lambda o, d: o(2, t=C).clamp(0),
    "floor of complex numbers": lambda o, d: o(2, t=C).floor(),
    "in-place result that does not fit": lambda o, d: o(2, t=L).exp_(),
    "out= that does not fit": lambda o, d: torch.add(o(2), 1, out=o(2, t=L)),
    "negative power of integers": lambda o, d: o(2, t=L) ** -1,
    "random floats as integers": lambda o, d: torch.rand(2, device=d, dtype=L),
    "maximum of nothing": lambda o, d: o(0).max(),
    "maximum along nothing": lambda o, d: o(0).max(0),
    "amax along nothing": lambda o, d: o(0).amax(0),
    "argmax of nothing": lambda o, d: o(0).argmax(),
    "median along nothing": lambda o, d: o(0).median(0),
    "mode along nothing": lambda o, d: o(0).mode(),
    "topk beyond the size": lambda o, d: o(2).topk(3),
    "index of floats": lambda o, d: o(3)[_index(d, 1.0, F32)],
    "index_select with floats": lambda o, d: o(3).index_select(0, _index(d, 1.0, F32)),
    "gather with floats": lambda o, d: o(3).gather(0, _index(d, 1.0, F32)),
    "embedding with floats": lambda o, d: F.embedding(_index(d, 1.0, F32), o(3, 2)),
    "index_add of another dtype": lambda o, d: o(3).index_add(0, _index(d), o(1, t=D)),
    "index_copy of another dtype": lambda o, d: o(3).index_copy(0, _index(d), o(1, t=D)),
    "index_put of another dtype": lambda o, d: o(3).index_put((_index(d),), o(1, t=D)),
    "scatter of another dtype": lambda o, d: o(3).scatter(0, _index(d), o(1, t=D)),
    "where without a mask": lambda o, d: torch.where(o(3), o(3), o(3)),
    "masked_fill without a mask": lambda o, d: o(3).masked_fill(o(3), 0),
    "masked_select without a mask": lambda o, d: o(3).masked_select(o(3)),
    "classes of the wrong dtype": lambda o, d: F.nll_loss(o(1, 3), _index(d, 1, torch.int32)),
    "loss of two dtypes": lambda o, d: F.binary_cross_entropy(o(3), o(3, t=D)),
    "lerp of two dtypes": lambda o, d: torch.lerp(o(3), o(3, t=D), 0.5),
    "layer_norm of another shape": lambda o, d: F.layer_norm(o(2, 3), (2,)),
    "layer_norm by weights of half": lambda o, d: F.layer_norm(o(2, 3), (3,), o(3, t=H)),
    "layer_norm of doubles by floats": lambda o, d: F.layer_norm(o(2, 3, t=D), (3,), o(3)),
    "group_norm by two dtypes": lambda o, d: F.group_norm(o(2, 4, t=H), 2, o(4, t=H), o(4)),
    "batch_norm by weights of half": lambda o, d: F.batch_norm(
        o(2, 3), o(3), o(3), o(3, t=H), training=True
    ),
    "batch_norm of one value": lambda o, d: F.batch_norm(o(1, 2), None, None, training=True),
    "reflection beyond the edge": lambda o, d: F.pad(o(1, 1, 4), (5, 5), mode="reflect"),
    "inverse of integers": lambda o, d: torch.linalg.inv(o(2, 2, t=L)),
    "inverse of a singular matrix": lambda o, d: torch.linalg.inv(o(2, 2)),
    "cholesky of a negative matrix": lambda o, d: torch.linalg.cholesky(-torch.eye(2, device=d)),
    "division of integers by zero": lambda o, d: o(3, t=L) // 0,
    "classes out of range": lambda o, d: F.cross_entropy(o(1, 3), _index(d, 5)),
    "negative repeats": lambda o, d: o(1).repeat_interleave(_index(d, -1)),
    "empty range of random integers": lambda o, d: torch.randint(5, 2, (3,), device=d),
}


@pytest.mark.parametrize("call", _MISTAKES.values(), ids=_MISTAKES.keys())
def test_mistake_raises_cpus_class(call):
    def attempt(device):
        def ones(*shape, t=F32):
            return torch.ones(*shape, dtype=t, device=device)

        call(ones, device)
        torch.tpu.synchronize()

    with pytest.raises(Exception, match=r"") as expected:
        attempt("cpu")
    with pytest.raises(expected.type):
        attempt("tpu")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: _t(2, 3) @ _t(2, 3), "mat1 and mat2 shapes cannot be multiplied"),
        (lambda: _t(2, 2) @ _t(2, 2, dtype=D), "to have the same dtype, but got: float != double"),
        (lambda: _t(2) + _t(3), r"The size of tensor a \(2\) must match"),
        (lambda: _t(2, dtype=L).exp_(), "result type Float can't be cast"),
        (lambda: _t(0).max(), "Expected reduction dim to be specified"),
        (lambda: F.conv2d(_t(1, 2, 4, 4), _t(1, 3, 2, 2)), "to have 3 channels, but got 2"),
        (
            lambda: torch.embedding_bag(_t(2, 2, 2), _index("tpu"), _index("tpu", 0)),
            "weight has to be a 2D Tensor",
        ),
    ],
)
def test_mistake_is_worded_as_on_cpu(call, message):
    with pytest.raises(RuntimeError, match=f"(?i){message}"):
        call()


def test_mistake_is_printed_once():
    leaf = _t(3, requires_grad=True)
    leaf.register_hook(lambda grad: _t(3, 7) @ grad)
    with pytest.raises(RuntimeError, match="size mismatch") as raised:
        (leaf * 2).sum().backward()
    printed = "".join(traceback.format_exception(raised.value))
    assert printed.count("size mismatch") == 1, printed


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


def test_deferred_error_in_a_hook_names_the_hooks_line():
    def hook(gradient):
        return gradient * gradient[torch.tensor([9], device="tpu")]

    line = hook.__code__.co_firstlineno + 1
    x = torch.ones(4, device="tpu", requires_grad=True)
    y = x * 2
    y.register_hook(hook)
    with pytest.raises(IndexError, match=rf":{line} in hook"):
        y.sum().backward()
        torch.tpu.synchronize()


def test_deferred_error_in_a_function_of_autograd_names_its_backwards_line():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * gradient[torch.tensor([9], device="tpu")]

    line = Doubled.backward.__code__.co_firstlineno + 2
    x = torch.ones(4, device="tpu", requires_grad=True)
    with pytest.raises(IndexError, match=rf":{line} in backward"):
        Doubled.apply(x).sum().backward()
        torch.tpu.synchronize()


def test_deferred_error_is_raised_once():
    x, i = torch.arange(4.0, device="tpu"), torch.tensor([4], device="tpu")
    x[i]
    with pytest.raises(IndexError):
        torch.tpu.synchronize()
    torch.tpu.synchronize()


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
