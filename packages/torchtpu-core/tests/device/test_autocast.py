# SPDX-License-Identifier: Apache-2.0
"""Autocast chooses dtypes by op; GradScaler scales, skips and adapts."""

from __future__ import annotations

import pytest
import torch


def _x():
    return torch.ones(4, 4, device="tpu")


def test_matmul_runs_in_bfloat16():
    with torch.autocast("tpu", dtype=torch.bfloat16):
        assert (_x() @ _x()).dtype == torch.bfloat16
    assert (_x() @ _x()).dtype == torch.float32


def test_default_dtype_is_bfloat16():
    with torch.autocast("tpu"):
        assert torch.get_autocast_dtype("tpu") == torch.bfloat16
        assert torch.is_autocast_enabled("tpu")


@pytest.mark.parametrize(
    "op",
    [
        lambda x: x.softmax(0),
        lambda x: x.sum(),
        lambda x: torch.nn.functional.mse_loss(x, x),
        lambda x: torch.nn.functional.layer_norm(x, (4,)),
        lambda x: x.exp(),
    ],
)
def test_sensitive_op_runs_in_float32(op):
    x = _x().bfloat16()
    with torch.autocast("tpu", dtype=torch.bfloat16):
        assert op(x).dtype == torch.float32


def test_mixed_operands_are_promoted():
    with torch.autocast("tpu", dtype=torch.bfloat16):
        assert torch.cat([_x(), _x().bfloat16()]).dtype == torch.float32


def test_disabled_inside_stays_off():
    with torch.autocast("tpu", dtype=torch.bfloat16), torch.autocast("tpu", enabled=False):
        assert (_x() @ _x()).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32])
def test_unsupported_dtype_is_refused_with_a_warning(dtype):
    with pytest.warns(UserWarning, match="autocast"), torch.autocast("tpu", dtype=dtype):
        assert not torch.is_autocast_enabled("tpu")


def test_binary_cross_entropy_is_refused():
    with (
        torch.autocast("tpu"),
        pytest.raises(RuntimeError, match="binary_cross_entropy_with_logits"),
    ):
        torch.nn.functional.binary_cross_entropy(_x(), _x())


def test_custom_fwd_casts_and_bwd_keeps_it():
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="tpu", cast_inputs=torch.float32)
        def forward(ctx, x):
            assert not torch.is_autocast_enabled("tpu")
            return x @ x

        @staticmethod
        @torch.amp.custom_bwd(device_type="tpu")
        def backward(ctx, gradient):
            return gradient

    x = _x().bfloat16().requires_grad_()
    with torch.autocast("tpu"):
        y = Product.apply(x)
    assert y.dtype == torch.float32
    y.sum().backward()


def test_training_step_keeps_float32_weights_and_gradients():
    model = torch.nn.Linear(4, 4).to("tpu")
    with torch.autocast("tpu", dtype=torch.bfloat16):
        loss = model(_x()).float().square().mean()
    loss.backward()
    assert model.weight.dtype == model.weight.grad.dtype == torch.float32


def test_cached_cast_weights_are_released():
    model = torch.nn.Linear(4, 4).to("tpu")
    with torch.autocast("tpu"):
        model(_x())
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    with torch.autocast("tpu"):
        assert model(_x()).abs().sum().item() == 0


def _scaled_step(gradient_value):
    weight = torch.nn.Parameter(torch.ones(2, device="tpu"))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("tpu", init_scale=8.0)
    scaler.scale((weight * gradient_value).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    return weight.tolist(), scaler.get_scale()


def test_grad_scaler_steps_with_unscaled_gradients():
    assert _scaled_step(0.25) == ([0.75, 0.75], 8.0)


def test_grad_scaler_skips_infinite_gradients_and_halves_the_scale():
    assert _scaled_step(float("inf")) == ([1.0, 1.0], 4.0)


def test_grad_scaler_state_survives():
    scaler = torch.amp.GradScaler("tpu", init_scale=4.0)
    scaler.scale(torch.ones(1, device="tpu"))
    other = torch.amp.GradScaler("tpu")
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == 4.0


def _fast_and_ordinary(call):
    """Results of a call in eval mode under autocast, with PyTorch's fast path allowed and not."""
    found = []
    for fast in (True, False):
        torch.backends.mha.set_fastpath_enabled(fast)
        try:
            with torch.inference_mode(), torch.autocast("tpu", dtype=torch.bfloat16):
                found.append(call())
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
    return found


_FINITE = torch.linspace(-2, 2, 64).view(8, 8)


@pytest.mark.parametrize("mask", [None, _FINITE > 1, _FINITE], ids=["none", "boolean", "added"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layer_in_eval_mode_is_cast_as_its_parts_are(mask, norm_first):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=norm_first)
    layer, x = layer.to("tpu").eval(), torch.randn(2, 8, 32).to("tpu")
    given = None if mask is None else mask.to("tpu")
    fast, ordinary = _fast_and_ordinary(lambda: layer(x, src_mask=given))
    assert fast.dtype == ordinary.dtype == torch.float32
    assert torch.equal(fast.cpu(), ordinary.cpu())
    with torch.inference_mode():  # without autocast products are of float32
        assert not torch.equal(layer(x, src_mask=given).cpu(), ordinary.cpu())


@pytest.mark.parametrize("averaged", [True, False])
def test_attention_in_eval_mode_is_cast_as_its_parts_are(averaged):
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(32, 4, batch_first=True).to("tpu").eval()
    x, hidden = torch.randn(2, 8, 32).to("tpu"), (torch.arange(8) >= 5).expand(2, 8).to("tpu")
    options = {"key_padding_mask": hidden, "average_attn_weights": averaged}
    fast, ordinary = _fast_and_ordinary(lambda: layer(x, x, x, **options))
    assert [one.dtype for one in fast] == [torch.bfloat16, torch.float32]  # as on CUDA
    for one, other in zip(fast, ordinary, strict=True):
        torch.testing.assert_close(one.cpu(), other.cpu(), rtol=2**-7, atol=2**-7)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_encoder_that_leaves_padding_out_is_cast_as_its_parts_are():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2).to("tpu").eval()
    x, hidden = torch.randn(2, 8, 32).to("tpu"), torch.arange(8).expand(2, 8) >= 5
    fast, ordinary = _fast_and_ordinary(lambda: encoder(x, src_key_padding_mask=hidden.to("tpu")))
    assert fast.dtype == torch.float32
    assert fast[:, 5:].eq(0).all()  # as without autocast
    torch.testing.assert_close(fast[:, :5].cpu(), ordinary[:, :5].cpu(), rtol=0.03, atol=0.03)
    with torch.inference_mode():
        exact = encoder(x, src_key_padding_mask=hidden.to("tpu"))
    assert (exact - fast)[:, :5].abs().max() > 1e-4
