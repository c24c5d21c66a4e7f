# SPDX-License-Identifier: Apache-2.0
"""What of a whole model survives its capture, in files and in StableHLO."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torchtpu_compile.ahead import aot, load
from torchtpu_compile.errors import AOTFileError, GraphError
from torchtpu_compile.export import export_stablehlo


class Of(nn.Module):
    """A model of one function of itself and its arguments."""

    def __init__(self, function, **state: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        for name, value in state.items():
            self.register_buffer(name, value)

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(4, 5, 2, bidirectional=True), nn.GRU(10, 3)
        self.projected = nn.LSTM(3, 5, proj_size=2)

    def forward(self, x: torch.Tensor):
        y, state = self.lstm(x)
        y, _ = self.gru(y)
        return y, state, self.projected(y)


X = torch.linspace(-1, 1, 12).reshape(3, 4)
SQUARE = X @ X.T + 2 * torch.eye(3)
CASES = {
    "a conversion of dtypes": (Of(lambda m, x: x.double().float() / 3), (X,)),
    "small integers": (Of(lambda m, a, b: a + b, b=X), (X.to(torch.uint8), X.to(torch.int16))),
    "tensors of the default device": (Of(lambda m, x: x + torch.arange(4) + torch.ones(())), (X,)),
    "a tensor that is no buffer": (Of(lambda m, x: x @ SQUARE), (X.T,)),
    "weights of eight bits": (
        Of(lambda m, x: x * m.w.float(), w=X[0].to(torch.float8_e4m3fn)),
        (X,),
    ),
    "complex weights": (Of(lambda m, x: (x * m.w).abs(), w=X[0] * 1j), (X,)),
    "recurrent layers": (Recurrent(), (X[:, None],)),
    "a factorisation": (Of(lambda m, x: torch.linalg.cholesky(x)), (SQUARE,)),
    "a determinant": (Of(lambda m, x: torch.logdet(x) + torch.linalg.det(x)), (SQUARE,)),
    "indices as one-hot rows": (
        Of(lambda m, i: functional.one_hot(i, 5)),
        (torch.tensor([1, 4]),),
    ),
    "a vectorised function": (Of(lambda m, x: torch.vmap(lambda r: r.softmax(0) @ r)(x)), (X,)),
    "a state that is only returned": (Of(lambda m, x: (x + 1, m.w), w=X[1]), (X,)),
}


@pytest.mark.parametrize("name", CASES)
def test_loaded_model_equals_cpu_eager(name: str, tmp_path: Path) -> None:
    model, args = CASES[name]
    aot(model, args, path=tmp_path / "m")
    actual, expected = load(tmp_path / "m")(*args), model(*args)
    flat = torch.utils._pytree.tree_leaves
    for a, e in zip(flat(actual), flat(expected), strict=True):
        torch.testing.assert_close(a.cpu(), e.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "order", [("scale", "bias"), ("bias", "scale")], ids=["of the signature", "of the alphabet"]
)
def test_keywords_reach_their_parameters_in_any_order(order, tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def forward(self, x, scale, bias, pair):
            return x * scale - bias + 3 * pair["b"] - pair["a"]

    given = {"scale": torch.tensor([2.0]), "bias": torch.tensor([5.0])}
    given = {name: given[name] for name in order}
    pair = {"b": torch.tensor([1.0]), "a": torch.tensor([7.0])}
    aot(Scaled(), (X,), {**given, "pair": pair}, path=tmp_path / "m")
    loaded = load(tmp_path / "m")
    for turned in (given, dict(reversed(given.items()))):
        for other in (pair, dict(reversed(pair.items()))):
            result = loaded(X, pair=other, **turned).cpu()
            torch.testing.assert_close(result, X * 2 - 5 + 3 - 7)


def test_index_out_of_range_names_the_models_line(tmp_path: Path) -> None:
    aot(Of(lambda m, i: m.w[i], w=X), (torch.tensor([0, 2]),), path=tmp_path / "m")
    loaded = load(tmp_path / "m")
    assert torch.equal(loaded(torch.tensor([1, -1])).cpu(), X[[1, -1]])
    with pytest.raises(IndexError, match=r"test_capture\.py"):
        loaded(torch.tensor([1, 3])).cpu()


def test_matrix_without_factor_names_the_models_line(tmp_path: Path) -> None:
    aot(Of(lambda m, x: torch.linalg.cholesky(x)), (SQUARE,), path=tmp_path / "m")
    with pytest.raises(RuntimeError, match=r"not positive-definite.*test_capture\.py"):
        load(tmp_path / "m")(-SQUARE).cpu()


@pytest.mark.parametrize(
    ("model", "args", "error", "message"),
    [
        (nn.ReLU(), X, TypeError, r"\(x,\)"),
        (torch.relu, (X,), TypeError, "Module"),
        (Of(lambda m, x: x.nonzero()), (X,), GraphError, r"size depends on values.*fixed size"),
        (
            Of(lambda m, x: torch.func.grad(lambda t: t.sum())(x)),
            (X,),
            GraphError,
            r"derivative \(at .*test_capture\.py",
        ),
    ],
)
def test_what_cannot_be_captured_is_refused(model, args, error, message: str) -> None:
    with pytest.raises(error, match=message):
        export_stablehlo(model, args)


def test_sparse_argument_is_refused(tmp_path: Path) -> None:
    aot(nn.ReLU(), (X,), path=tmp_path / "m")
    with pytest.raises(AOTFileError, match="sparse_coo"):
        load(tmp_path / "m")(X.to_sparse())


def _executed(module, operands: list[torch.Tensor]) -> list[np.ndarray]:
    """Results of a module under JAX's own client."""
    from jax._src.lib import xla_client

    device = jax.devices("cpu")[0]
    program = device.client.compile_and_load(
        module, xla_client.DeviceList((device,)), xla_client.CompileOptions()
    )
    arrays = [jax.device_put(t.detach().numpy(), device) for t in operands]
    return [np.asarray(r) for r in program.execute(arrays)]


class Several(nn.Module):
    """Results in another order than they are computed in, one of them twice, one a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.unread, self.w = nn.Parameter(X + 0), nn.Parameter(X[0] + 1)

    def forward(self, x: torch.Tensor):
        first = x * self.w
        best = first.topk(2).values
        return {"best": best, "x": x, "first": first + SQUARE[0, 0], "again": best, "w": self.w}


def test_results_of_portable_bytecode_are_those_of_the_model(tmp_path: Path) -> None:
    from jax._src.interpreters import mlir
    from jaxlib.mlir.dialects import stablehlo

    model = Several()
    export_stablehlo(model, (X,), path=tmp_path / "m.mlirbc")
    with mlir.make_ir_context() as context:
        content = (tmp_path / "m.mlirbc").read_bytes()
        module = stablehlo.deserialize_portable_artifact(context, content)
        results = _executed(module, [model.w, X])
    for actual, expected in zip(results, model(X).values(), strict=True):
        np.testing.assert_allclose(actual, expected.detach().numpy(), rtol=1e-6)


def test_call_of_the_hosts_library_has_no_portable_form(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"lapack.*\.mlir"):
        export_stablehlo(
            Of(lambda m, x: torch.linalg.cholesky(x)), (SQUARE,), path=tmp_path / "m.mlirbc"
        )
