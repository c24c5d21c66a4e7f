# SPDX-License-Identifier: Apache-2.0
"""Every op below is one program for all sizes of a bucket, and right at each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves
from torchtpu_compile import bounded_program
from torchtpu_compile.bounded_rules import RULES

SIZES = (6, 9, 15)


def _rows(n: int) -> Tensor:
    """`(n, 4)` of distinct numbers, so that ranks and places are unique."""
    return (torch.randperm(4 * n).reshape(n, 4) - 2.0 * n) / 3


def _with_nan(n: int) -> Tensor:
    x = _rows(n)
    x[1, 2] = torch.nan
    return x


def _image(n: int) -> Tensor:
    return torch.randn(2, 3, n, n + 1)


def _chosen(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0], device=x.device) * 5 % 3


def _sorted(x: Tensor) -> Tensor:
    return x.flatten().sort()[0]


def _experts(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows go to three experts in turn, in one product; and what its weights' gradient is."""
    expert = torch.arange(x.shape[0], device=x.device) % 3
    ends = F.one_hot(expert, 3).sum(0).cumsum(0).to(torch.int32)
    weights = torch.linspace(-1, 1, 48, device=x.device).reshape(3, 4, 4)
    rows = x[expert.argsort(stable=True)]
    return F.grouped_mm(rows, weights, offs=ends), F.grouped_mm(rows.t(), rows.sin(), offs=ends)


def _counted(x: Tensor) -> Tensor:
    """How many rows go to each of three experts; on the CPU, whole numbers have no histogram."""
    counts = _chosen(x).to(torch.float32 if x.device.type == "cpu" else torch.int32)
    return counts.histc(3, 0, 2).long() + counts.histc(2)[0].long()


def _written_at(x: Tensor) -> Tensor:
    """`(n, 4)` -> `(2 n, 4)`, through indices and values that are flattened from open rows."""
    rows, columns = (torch.arange(n, device=x.device) for n in x.shape)
    places = (columns[:, None] * 2 * x.shape[0] + 2 * rows).flatten()
    return x.new_zeros(8 * x.shape[0]).index_put((places,), x.t().flatten()).reshape(4, -1)


def _multilabel(x: Tensor) -> Tensor:
    target = torch.tensor([[1, 3, -1, 0]], device=x.device).expand_as(x)
    return F.multilabel_margin_loss(x / 9, target)


def _losses_of_flattened_rows(x: Tensor) -> Tensor:
    """`(n, C)` -> a loss for each of `2 n` flattened rows; n and C are open."""
    scores = torch.stack([x / 9, x.sin()]).flatten(0, 1)
    target = torch.stack([torch.arange(x.shape[0], device=x.device) * 5 % 3] * 2).flatten()
    return F.cross_entropy(scores, target, reduction="none").view(2, -1)


def _mean_of_flattened_rows(x: Tensor) -> Tensor:
    weights = torch.arange(x.shape[0], device=x.device) + 1.0
    return (_losses_of_flattened_rows(x) * weights).mean()


def _flattened_table(x: Tensor) -> Tensor:
    """`(n, 4)` -> `(n, 4)`: the last rows of a table whose rows are two open dimensions."""
    table = torch.stack([x, x.sin()]).flatten(0, 1)
    return F.embedding(torch.arange(x.shape[0], device=x.device) + x.shape[0], table)


def _segments(x: Tensor) -> tuple[Tensor, ...]:
    """`(n, 4)` -> `(3, 4)` and `(n, 2)`, of segments that differ in size and of two each."""
    lengths = torch.tensor([2, 0, 4], device=x.device)
    places = torch.arange(x.shape[0] + 1, device=x.device) * 2
    return (
        torch.segment_reduce(x[:6], "max", lengths=lengths, axis=0),
        torch.segment_reduce(x.flatten(), "mean", lengths=torch.full_like(places[1:], 4), axis=0),
        torch.segment_reduce(x[:, :2].flatten(), "sum", offsets=places, axis=0, initial=1.0),
        torch.segment_reduce(x / 9, "prod", lengths=torch.full_like(x[:, :2], 2).long(), axis=1),
    )


Case = tuple[Callable[[Tensor], Any], Callable[[int], Tensor]]


def _quantised(x: Tensor) -> Tensor:
    """By a range found in the tensor, and by one that a fused observer finds."""
    point = torch.zeros((), dtype=torch.int32, device=x.device)
    x = torch.fake_quantize_per_tensor_affine(x, x.detach().abs().amax() / 100, point, -128, 127)
    on, scale = torch.ones(1, dtype=torch.int64, device=x.device), torch.ones(1, device=x.device)
    state = (scale * float("inf"), -scale * float("inf"), scale, point.clone()[None])
    return torch.fused_moving_avg_obs_fake_quant(x - 1, on, on, *state, 0.01, 0, 255, -1)


def _factored(x: Tensor) -> Tensor:
    """A Gaussian process's fit to as many points as `x` has rows."""
    kernel = x @ x.t() / 8 + 2 * torch.eye(x.shape[0], device=x.device)
    factor = torch.linalg.cholesky(kernel)
    white = torch.triangular_solve(x, factor, upper=False)[0].square().sum()
    return (
        white + torch.cholesky_solve(x, factor).sin().sum() + torch.cholesky_inverse(factor).sum()
    )


def _products_of_factors(x: Tensor) -> Any:
    """Of LU and QR, taken apart and put together again."""
    matrix = x @ x.t() + x.shape[0] * torch.eye(x.shape[0], device=x.device)
    p, lower, upper = torch.linalg.lu(matrix)
    q, r = torch.linalg.qr(x)
    packed = torch.linalg.lu_factor(matrix.tril())
    return p @ upper.t() @ lower, q.abs(), r.abs(), torch.lu_unpack(*packed)


def _solved_by_factors(x: Tensor) -> Tensor:
    matrix = x @ x.t() + x.shape[0] * torch.eye(x.shape[0], device=x.device)
    return torch.linalg.lu_solve(*torch.linalg.lu_factor(matrix), x).square().sum()


def _packed_product(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows times eight-bit weights, of which there are five rows, and as many as of `x`."""
    weights = (x * 3).round().to(torch.int8)
    scales = x[:, 0].abs()
    few = torch._weight_int8pack_mm(x, weights[:5], scales[:5])
    return few, torch._weight_int8pack_mm(x, weights, scales)


CASES: dict[str, Case] = {
    "packed weights": (_packed_product, _rows),
    "factors of LU and QR": (_products_of_factors, lambda n: torch.randn(n, 4)),
    "fake quantisation": (_quantised, _rows),
    "factors": (_factored, lambda n: torch.randn(n, 4)),
    "segments": (_segments, _rows),
    "copies of slices": (lambda x: torch.slice_copy(x, 0, 1, x.shape[0] - 1), _rows),
    "lists": (
        lambda x: (
            torch._foreach_addcmul([x, x.cos()], [x.cos(), x], [x, x], [0.5, 2.0]),
            torch._foreach_add([x, x.sin()], [x, x], alpha=2),
            torch._foreach_norm([x, x.t()]),
        ),
        _rows,
    ),
    "writes in flattened order": (_written_at, _rows),
    "multi-label margin": (_multilabel, _rows),
    "losses of flattened rows": (_losses_of_flattened_rows, _rows),
    "lookups in flattened rows": (_flattened_table, _rows),
    "median": (lambda x: (x.median(), x.median(0), x.median(1, True), x.nanmedian(0)), _rows),
    "median of NaN": (lambda x: (x.median(0)[0], x.median(), x.nanmedian(0)), _with_nan),
    "kthvalue": (lambda x: (x.kthvalue(2, 0), x.kthvalue(x.shape[0] - 1, 0, True)), _rows),
    "mode": (lambda x: x.round().clamp(-2, 2).mode(0)[0], _rows),
    "std_mean": (lambda x: (torch.std_mean(x, 0), torch.var_mean(x)), _rows),
    "aminmax": (lambda x: (torch.aminmax(x), torch.aminmax(x, dim=0)), _rows),
    "argmax": (lambda x: (x.argmax(), x.t().argmin(), x.argmax(keepdim=True)), _rows),
    "topk of open count": (lambda x: x.topk(x.shape[0] // 2, 0), _rows),
    "histc": (lambda x: (x.histc(4, -3, 3), x.histc(5), _counted(x)), _rows),
    "grouped products": (_experts, lambda n: torch.randn(n, 4)),
    "roll": (lambda x: (x.roll(2, 0), x.roll((1, -1), (0, 1)), x.roll(3)), _rows),
    "every n-th": (lambda x: (x[::2], x[1::3] * 2, x[-5::2], x.t()[:, : x.shape[0] : 4]), _rows),
    "pieces": (lambda x: (x.sin().chunk(3), x.cos().split(x.shape[0] // 2 + 1)), _rows),
    "pieces that are views": (lambda x: (x.chunk(3), x.tensor_split(2), x.chunk(2, 1)), _rows),
    "windows": (lambda x: (x.unfold(0, 3, 2), x.t().unfold(1, 2, 1) * 2), _rows),
    "diagonals": (lambda x: (x.diagonal(1), (x @ x.t()).diagonal(-2), x.diagonal(-1)), _rows),
    "floor_divide": (lambda x: (x // 2, (x * 3).long() // 4, x // x.square().add(1)), _rows),
    "bucketize": (lambda x: torch.bucketize(x, torch.arange(-3.0, 3.0, device=x.device)), _rows),
    "searchsorted": (
        lambda x: (
            torch.searchsorted(_sorted(x), x * 1.1),
            torch.searchsorted(_sorted(x), torch.full_like(x, torch.inf), right=True),
            torch.searchsorted(x.sort(1)[0], x + 0.1),
        ),
        _rows,
    ),
    "isin": (lambda x: torch.isin(x.long(), torch.tensor([1, 2], device=x.device)), _rows),
    "glu": (lambda x: (F.glu(x, 1), F.glu(torch.cat([x, x]), 0)), _rows),
    "renorm": (lambda x: (x.renorm(2, 0, 1.5), x.renorm(1, 1, 2.0)), _rows),
    "cdist": (lambda x: (torch.cdist(x, x[1:]), torch.cdist(x.t(), x.t(), p=1.0)), _rows),
    "pdist": (lambda x: (F.pdist(x), F.pdist(x.t(), 1.0), F.pdist(x, 0.0)), _rows),
    "put": (
        lambda x: (
            x.put(_chosen(x) - 4, x.sin()[0, :1].expand(_chosen(x).shape)),
            x.t().put(_chosen(x), _chosen(x).to(x.dtype), accumulate=True),
        ),
        _rows,
    ),
    "complex": (
        lambda x: torch.view_as_real(
            torch.view_as_complex(x.view(-1, 2, 2)) * torch.polar(x, x)[:, :2]
        ),
        _rows,
    ),
    "bits of another width": (
        lambda x: (
            x.t().contiguous().view(torch.int16),
            torch.polar(x, x).t().contiguous().view(torch.float32),
            torch.cat((x.t(), x.t().neg()), 1).view(torch.complex64).abs(),
            x.view(torch.int64),
        ),
        _rows,
    ),
    "transform of fixed length": (
        lambda x: torch.fft.irfft(torch.fft.rfft(x[:, :4], dim=1) * 2, n=4, dim=1),
        _rows,
    ),
    "transform of open length": (
        lambda x: (
            torch.view_as_real(torch.fft.fft2(x, norm="ortho")),
            torch.view_as_real(torch.fft.ifft(torch.polar(x, x), dim=0)),
            torch.view_as_real(torch.fft.rfft(x, dim=0)),
            torch.fft.irfft(torch.fft.rfft(x, dim=0) * 2, n=x.shape[0], dim=0),
            torch.fft.irfft(torch.polar(x, x), dim=0),
            torch.fft.irfft2(torch.polar(x, x), dim=(1, 0)),
            torch.fft.irfft2(
                torch.fft.rfft2(x, dim=(1, 0)), s=(x.shape[1], x.shape[0]), dim=(1, 0)
            ),
        ),
        lambda n: torch.randn(n, 4),
    ),
    "matrix_exp": (lambda x: torch.linalg.matrix_exp(x @ x.t() * 1e-4), _rows),
    "reflected border": (lambda x: F.pad(x, (2, 1, 3, 2), mode="reflect"), _image),
    "replicated border": (lambda x: F.pad(x, (2, 1, 3, 2), mode="replicate"), _image),
    "circular border": (lambda x: F.pad(x, (2, 1, 3, 2), mode="circular"), _image),
    "border of open width": (
        lambda x: (
            F.pad(x, (0, 0, 0, 16 - x.shape[0])),
            F.pad(x, (0, 0, -x.shape[0] % 4, -1), value=2.0),
        ),
        _rows,
    ),
    "open number of classes": (
        lambda x: (
            F.cross_entropy(x.t(), torch.arange(4, device=x.device)),
            F.embedding(_chosen(x), x.sin()),
        ),
        _rows,
    ),
    "weighted binary loss": (
        lambda x: F.binary_cross_entropy_with_logits(
            x, x.sigmoid(), x.abs(), pos_weight=torch.arange(4.0, device=x.device)
        ),
        _rows,
    ),
    "scatter": (
        lambda x: (
            torch.zeros(3, 4, device=x.device).scatter_add(0, _chosen(x)[:, None].expand(-1, 4), x),
            x.scatter(0, x.argsort(0)[:5], x * 2),
            x.scatter(1, x.argsort(1)[:, :3], 7.0),
            x.scatter_reduce(0, _chosen(x)[:, None].expand(-1, 4), x, "amax"),
            x.scatter_reduce(0, _chosen(x)[:, None].expand(-1, 4), x, "mean", include_self=False),
        ),
        _rows,
    ),
    "index writes": (
        lambda x: (
            torch.ones(3, 4, device=x.device).index_add(0, _chosen(x), x, alpha=2),
            torch.ones(3, 4, device=x.device).index_reduce(0, _chosen(x), x, "prod"),
            x.index_copy(0, x[:, 0].argsort()[:4], x[:4] * 3),
            x.index_fill(0, x[:, 0].argsort()[:3], -1.0),
        ),
        _rows,
    ),
    "quantile": (lambda x: (x.quantile(0.3, 0), x.nanquantile(0.7)), _rows),
    "rounded sizes": (
        lambda x: F.interpolate(x, scale_factor=1.5, recompute_scale_factor=True),
        _image,
    ),
    "channels and places": (
        lambda x: (
            F.pixel_shuffle(x.repeat_interleave(4, 0)[None, :, :, None], 2),
            F.pixel_shuffle(x.t()[..., None].contiguous(), 2),
            F.pixel_unshuffle(x.repeat_interleave(2, 0)[None, None], 2),
        ),
        _rows,
    ),
    "windows put back": (
        lambda x: (
            F.fold(x.repeat(9, 1).view(9, -1, 4).movedim(1, 0), (4, 4), 3),
            F.fold(x.repeat(1, 3).t(), (x.shape[0] + 1, 3), (2, 3)),
        ),
        _rows,
    ),
    "embedding bag": (lambda x: [_bagged(x, mode) for mode in ("mean", "sum", "max")], _rows),
    "masked_scatter": (lambda x: x.masked_scatter(x > 0, x * 10), _rows),
    "one_hot": (lambda x: F.one_hot(_chosen(x), 3), _rows),
    "transposed convolution": (
        lambda x: F.conv_transpose2d(x, torch.ones(3, 2, 3, 3, device=x.device), stride=2),
        _image,
    ),
    "strided writes": (lambda x: _write_every_other(x), _rows),
}


def _bagged(x: Tensor, mode: str) -> Tensor:
    table = x.t() @ x  # (4, 4)
    of_pairs = F.embedding_bag(x.long() % 4, table, mode=mode)
    starts = torch.arange(0, x.shape[0] - 2, 2, device=x.device)
    return of_pairs.sum(0) + F.embedding_bag(x[:, 0].long() % 4, table, starts, mode=mode)[-1]


def _masked_attention(x: Tensor) -> Tensor:
    """A bias for each pair, and one for each query that is the same for all keys."""
    q = x.sin()[None, None]
    far = torch.ones(x.shape[0], x.shape[0], device=x.device, dtype=torch.bool).tril(-3)
    bias = (x @ x.t() * 0.1).masked_fill(far, -torch.inf)
    first = F.scaled_dot_product_attention(q, q, q, attn_mask=bias[None, None])
    return first + F.scaled_dot_product_attention(q, q, q, attn_mask=x[:, :1].cos()[None, None])


def _write_every_other(x: Tensor) -> Tensor:
    y = x.clone()
    y[1::2] = y[: y.shape[0] // 2] * 3
    y.diagonal(1).zero_()
    return y


@pytest.mark.parametrize("name", CASES)
def test_one_program_is_right_at_every_size(name: str) -> None:
    function, make = CASES[name]
    compiled = torch.compile(function, backend="tpu", dynamic=True, fullgraph=True)
    bounded_program.reasons.clear()
    torch.tpu.synchronize()
    before = torch.tpu.counters()["compiles"]
    for n in SIZES:
        x = make(n)
        pairs = zip(tree_leaves(compiled(x.to("tpu"))), tree_leaves(function(x)), strict=True)
        for actual, expected in pairs:
            torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert not bounded_program.reasons
    torch.tpu.synchronize()
    assert torch.tpu.counters()["compiles"] - before <= 2


#: Losses whose gradients have ops of their own.
GRADIENTS: dict[str, Case] = {
    "factors of LU": (_solved_by_factors, lambda n: torch.randn(n, 4)),
    "losses of flattened rows": (_mean_of_flattened_rows, _rows),
    "multi-label margin": (_multilabel, _rows),
    "grouped products": (lambda x: _experts(x)[0].square().sum(), lambda n: torch.randn(n, 4)),
    "mse": (lambda x: F.mse_loss(x.sin(), x * 2), _rows),
    "smooth_l1": (lambda x: F.smooth_l1_loss(x.sin(), x * 2), _rows),
    "huber": (lambda x: F.huber_loss(x.sin(), x * 2), _rows),
    "slices": (lambda x: x[::2].square().sum() + x[1:].select(0, 1).sum() * x[-1].sum(), _rows),
    "activations": (
        lambda x: sum(
            f(x).square().mean()
            for f in (F.leaky_relu, F.hardswish, F.softplus, F.logsigmoid, F.mish, F.elu, F.glu)
        ),
        _rows,
    ),
    "cdist": (lambda x: torch.cdist(x, x[1:] * 2).mean(), _rows),
    "pdist": (lambda x: F.pdist(x).sin().sum() + F.pdist(x.t(), 3.0).square().mean(), _rows),
    "take": (lambda x: torch.take(x.sin(), _chosen(x) * 2 - 1).square().sum(), _rows),
    "windows": (lambda x: x.unfold(0, 3, 2).square().mean(), _rows),
    "borders": (
        lambda x: (
            F.pad(x, (1, 2, 2, 1), mode="reflect").square().mean()
            + F.pad(x, (1, 2, 2, 1), mode="replicate").sin().mean()
        ),
        _image,
    ),
    "transposed convolution": (
        lambda x: (
            F.conv_transpose2d(x, torch.ones(3, 2, 3, 3, device=x.device), stride=2).sin().mean()
        ),
        _image,
    ),
    "interpolation": (
        lambda x: (
            F.interpolate(x[..., :-1], scale_factor=2, mode="bilinear").square().mean()
            + F.interpolate(x, scale_factor=2).sin().mean()
        ),
        _image,
    ),
    "smoothed by cubes": (
        lambda x: (
            F.interpolate(x, (3, 4), None, "bicubic", True, None, antialias=True).square().mean()
        ),
        _image,
    ),
    "transform of open length": (
        lambda x: (
            torch.fft.rfft(x, dim=0).abs().mean()
            + torch.fft.irfft(torch.polar(x, x), dim=0).sin().mean()
        ),
        lambda n: torch.randn(n, 4),
    ),
    "border of open width": (
        lambda x: F.pad(x, (1, 0, 16 - x.shape[0], -1)).square().mean(),
        _rows,
    ),
    "open number of classes": (
        lambda x: (
            F.cross_entropy(x.t(), torch.arange(4, device=x.device))
            + F.embedding(_chosen(x), x).sin().sum()
        ),
        _rows,
    ),
    "sorted": (lambda x: x.sort(0)[0][: x.shape[0] // 2].square().mean() + x.median(), _rows),
    "embedding bag": (
        lambda x: sum(_bagged(x, mode).square().sum() for mode in ("mean", "sum", "max")) * 1e-6,
        _rows,
    ),
    "masked_scatter": (
        lambda x: x.cos().masked_scatter(x > 0, x.sin().flatten()).square().sum(),
        _rows,
    ),
    "sums of products": (
        lambda x: (
            F.bilinear(x, x.sin(), torch.linspace(-1, 1, 32, device=x.device).view(2, 4, 4)).sum()
            + torch.addbmm(x.t() @ x, x[:, :, None], x[:, None].cos()).mean()
        ),
        lambda n: torch.randn(n, 4),
    ),
    "masked attention": (lambda x: _masked_attention(x).square().sum() * 1e-3, _rows),
    "segments": (lambda x: sum(v.cos().sum() for v in _segments(x)), _rows),
    "scattered": (
        lambda x: (
            torch.zeros(3, 4, device=x.device).index_add(0, _chosen(x), x.sin()).square().sum()
            + x.scatter(0, x.argsort(0)[:5], x[:5] * 2).sin().sum()
        ),
        _rows,
    ),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient_is_right_at_every_size(name: str) -> None:
    function, make = GRADIENTS[name]
    compiled = torch.compile(function, backend="tpu", dynamic=True, fullgraph=True)
    bounded_program.reasons.clear()
    for n in SIZES:
        x = make(n).requires_grad_()
        on_device = x.detach().to("tpu").requires_grad_()
        function(x).backward()
        compiled(on_device).backward()
        torch.testing.assert_close(on_device.grad.cpu(), x.grad, rtol=1e-4, atol=1e-5)
    assert not bounded_program.reasons


def test_draws_at_open_sizes_are_those_of_eager_mode() -> None:
    def function(x: Tensor) -> Any:
        order = torch.randperm(x.shape[0], device=x.device)
        return order, torch.multinomial(x, 2), torch.multinomial(x, 6, replacement=True)

    compiled = torch.compile(function, backend="tpu", dynamic=True, fullgraph=True)
    bounded_program.reasons.clear()
    for n in SIZES:
        x = torch.rand(n, n + 2, device="tpu")
        drawn = []
        for f in (function, compiled):
            torch.manual_seed(n)
            drawn.append([t.cpu() for t in f(x)])
        assert all(map(torch.equal, *drawn))
        assert sorted(drawn[1][0].tolist()) == list(range(n))
    assert not bounded_program.reasons


def test_piece_of_an_input_is_that_piece_at_true_sizes_too(monkeypatch: Any) -> None:
    def rule(call: Any) -> Any:
        raise TypeError("an arm is too short")

    monkeypatch.setitem(RULES, "aten::cumsum", rule)
    compiled = torch.compile(
        lambda x: (x.cumsum(0), x[1:], x.chunk(2)), backend="tpu", dynamic=True
    )
    for n in SIZES:
        x = _rows(n)
        for actual, expected in zip(
            tree_leaves(compiled(x.to("tpu")))[1:], (x[1:], *x.chunk(2)), strict=True
        ):
            assert torch.equal(actual.cpu(), expected)


def test_class_beyond_the_last_is_an_error_with_the_line() -> None:
    compiled = torch.compile(lambda x: F.one_hot(x, 3), backend="tpu", fullgraph=True)
    with pytest.raises(
        RuntimeError, match=r"Class values must be smaller .*test_dynamic_rules\.py"
    ):
        compiled(torch.tensor([1, 5], device="tpu")).cpu()
