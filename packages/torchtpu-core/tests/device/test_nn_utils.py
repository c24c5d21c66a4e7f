# SPDX-License-Identifier: Apache-2.0
"""torch.nn.utils on the device: clipping, parametrizations, packing, flattening."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, rnn


def _model(device):
    torch.manual_seed(0)
    return nn.Linear(3, 2).to(device)


def _x(device):
    return torch.arange(1.0, 7.0).reshape(2, 3).to(device)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("norm_type", [1.0, 2.0, float("inf")])
def test_clip_grad_norm_matches_cpu(norm_type, foreach):
    norms, gradients = [], []
    for device in ("cpu", "tpu"):
        model = _model(device)
        model(_x(device)).square().sum().backward()
        norm = nn.utils.clip_grad_norm_(
            model.parameters(), 0.5, norm_type=norm_type, foreach=foreach
        )
        norms.append(norm.cpu())
        gradients.append(model.weight.grad.cpu())
    torch.testing.assert_close(norms[1], norms[0])
    torch.testing.assert_close(gradients[1], gradients[0])


def test_clip_grad_norm_refuses_infinite_norms_if_asked():
    model = _model("tpu")
    (model(_x("tpu")) * float("inf")).sum().backward()
    with pytest.raises(RuntimeError, match="non-finite"):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)


def test_clip_grad_value_clamps():
    model = _model("tpu")
    (model(_x("tpu")) * 100).sum().backward()
    nn.utils.clip_grad_value_(model.parameters(), 1.0)
    assert model.weight.grad.abs().max().item() == 1.0


def test_weight_norm_matches_cpu():
    outs = []
    for device in ("cpu", "tpu"):
        model = parametrizations.weight_norm(_model(device))
        out = model(_x(device))
        out.sum().backward()
        outs += [out.detach().cpu(), model.parametrizations.weight.original0.grad.cpu()]
    torch.testing.assert_close(outs[2:], outs[:2])


def test_spectral_norm_bounds_the_largest_singular_value():
    model = parametrizations.spectral_norm(_model("tpu"), n_power_iterations=20)
    model.train()
    model(_x("tpu"))
    largest = torch.linalg.matrix_norm(model.weight.detach().cpu(), 2).item()
    assert largest == pytest.approx(1.0, abs=1e-3)


def test_orthogonal_parametrization_is_orthogonal():
    model = parametrizations.orthogonal(nn.Linear(3, 3, bias=False).to("tpu"))
    weight = model.weight.detach()
    torch.testing.assert_close((weight @ weight.T).cpu(), torch.eye(3), rtol=0, atol=1e-5)


def test_own_parametrization_trains_and_can_be_removed():
    class Doubled(nn.Module):
        def forward(self, weight):
            return weight * 2

    model = _model("tpu")
    before = model.weight.detach().cpu()
    parametrize.register_parametrization(model, "weight", Doubled())
    model(_x("tpu")).sum().backward()
    assert model.parametrizations.weight.original.grad.device.type == "tpu"
    parametrize.remove_parametrizations(model, "weight")
    torch.testing.assert_close(model.weight.detach().cpu(), before * 2)


def test_parameters_to_vector_and_back():
    model = _model("tpu")
    vector = nn.utils.parameters_to_vector(model.parameters())
    assert vector.shape == (8,)
    nn.utils.vector_to_parameters(vector * 0, model.parameters())
    assert model.weight.abs().sum().item() == 0


def test_pruning_masks_the_weight():
    model = _model("tpu")
    prune.l1_unstructured(model, "weight", amount=2)
    assert (model.weight == 0).sum().item() == 2


def test_padded_and_packed_sequences_match_cpu():
    rows = [torch.arange(1.0, 4.0), torch.arange(4.0, 6.0)]
    results = []
    for device in ("cpu", "tpu"):
        padded = rnn.pad_sequence([r.to(device) for r in rows], batch_first=True)
        packed = rnn.pack_padded_sequence(padded, torch.tensor([3, 2]), batch_first=True)
        again, _ = rnn.pad_packed_sequence(packed, batch_first=True)
        results.append((packed.data.cpu(), again.cpu()))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("total", [None, 9])
@pytest.mark.parametrize("features", [(), (2, 3)])
def test_packed_sequences_and_their_gradients_match_cpu(batch_first, total, features):
    rows = torch.randn(3, 7, *features) if batch_first else torch.randn(7, 3, *features)
    lengths, results = torch.tensor([4, 7, 2]), []
    for device in ("cpu", "tpu"):
        x = rows.clone().to(device).requires_grad_()
        packed = rnn.pack_padded_sequence(x, lengths, batch_first, enforce_sorted=False)
        padded, found = rnn.pad_packed_sequence(packed, batch_first, -1.5, total)
        (grad,) = torch.autograd.grad(padded.sin().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(grad.cos().sum(), x)
        assert padded.stride() == (results[0][0].stride() if results else padded.stride())
        results.append((padded, found, grad, second))
    torch.testing.assert_close([t.cpu() for t in results[1]], list(results[0]))


def test_padding_a_packed_sequence_is_as_few_operators_however_many_steps_there_are():
    x = torch.randn(300, 16, 2, device="tpu", requires_grad=True)
    lengths = torch.arange(300, 140, -10)
    torch.tpu.synchronize()
    torch.tpu.reset_counters()
    rnn.pad_packed_sequence(rnn.pack_padded_sequence(x, lengths))[0].sum().backward()
    torch.tpu.synchronize()
    assert torch.tpu.counters()["ops"] < 20


def test_padding_to_fewer_steps_than_there_are_is_refused():
    packed = rnn.pack_sequence([torch.ones(3, device="tpu")])
    with pytest.raises(RuntimeError, match="total_length to be at least"):
        torch._VF._pad_packed_sequence(packed.data, packed.batch_sizes, False, 0.0, 2)


def test_fused_conv_and_batch_norm_matches_cpu():
    outs = []
    for device in ("cpu", "tpu"):
        torch.manual_seed(0)
        conv, norm = nn.Conv2d(1, 2, 1).eval(), nn.BatchNorm2d(2).eval()
        fused = nn.utils.fuse_conv_bn_eval(conv.to(device), norm.to(device))
        outs.append(fused(torch.ones(1, 1, 2, 2, device=device)).detach().cpu())
    torch.testing.assert_close(outs[1], outs[0])


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_of_half_weights_takes_float32_statistics(training):
    """As FSDP's mixed precision leaves them; the CPU has no kernel for it."""
    torch.manual_seed(0)
    dtype, x = torch.bfloat16, torch.randn(16, 3).bfloat16()
    reference = nn.BatchNorm1d(3).train(training)
    reference.running_mean.fill_(0.25)
    norm = nn.BatchNorm1d(3, device="tpu").train(training)
    norm.load_state_dict(reference.state_dict())
    norm.weight.data, norm.bias.data = norm.weight.data.to(dtype), norm.bias.data.to(dtype)
    expected, found = reference(x.float()), norm(x.to("tpu"))
    torch.testing.assert_close(found.cpu(), expected.to(dtype))
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(norm, name).cpu(), getattr(reference, name))
    expected.square().sum().backward()
    found.square().sum().backward()
    assert norm.weight.grad.dtype == dtype
    torch.testing.assert_close(norm.weight.grad.cpu(), reference.weight.grad.to(dtype))
