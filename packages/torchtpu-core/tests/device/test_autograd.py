# SPDX-License-Identifier: Apache-2.0
"""Autograd on the device: gradients, hooks, anomaly mode, checkpoints, custom functions."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.utils.checkpoint import checkpoint


def _x(device="tpu"):
    return torch.tensor([0.5, 1.0, 2.0], device=device, requires_grad=True)


def _both(function):
    """`function` on the CPU and on the device, both on the host."""
    return function("cpu"), function("tpu")


def test_gradient_matches_cpu():
    def gradient(device):
        x = _x(device)
        (x.sin() * x.exp()).sum().backward()
        return x.grad.cpu()

    expected, actual = _both(gradient)
    torch.testing.assert_close(actual, expected)


def test_double_backward_matches_cpu():
    def second(device):
        x = _x(device)
        (first,) = torch.autograd.grad(x.pow(3).sum(), x, create_graph=True)
        (result,) = torch.autograd.grad(first.pow(2).sum(), x)
        return result.cpu()

    expected, actual = _both(second)
    torch.testing.assert_close(actual, expected)


def test_gradcheck_passes():
    x = torch.tensor([0.5, 1.5], dtype=torch.float64, device="tpu", requires_grad=True)
    assert torch.autograd.gradcheck(lambda y: y.tanh() * y, (x,))


def test_jacobian_and_hessian_match_cpu():
    def matrices(device):
        x = _x(device).detach()
        function = lambda y: (y * y.roll(1)).sum()  # noqa: E731
        return torch.autograd.functional.hessian(function, x).cpu()

    expected, actual = _both(matrices)
    torch.testing.assert_close(actual, expected)


def test_gradients_accumulate():
    x = _x()
    for _ in range(2):
        (x * 3).sum().backward()
    assert x.grad.tolist() == [6.0] * 3


def test_tensor_hook_changes_the_gradient():
    x = _x()
    handle = x.register_hook(lambda g: g * 10)
    x.sum().backward()
    assert x.grad.tolist() == [10.0] * 3
    handle.remove()


def test_post_accumulate_hook_runs_after_the_gradient_is_there():
    x, seen = _x(), []
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.tolist()))
    x.sum().backward()
    assert seen == [[1.0] * 3]


def test_module_hooks_see_device_tensors():
    model, seen = torch.nn.Linear(3, 2).to("tpu"), []
    model.register_forward_hook(lambda m, i, o: seen.append(o.device.type))
    model.register_full_backward_hook(lambda m, gi, go: seen.append(go[0].device.type))
    model(_x()).sum().backward()
    assert seen == ["tpu", "tpu"]


def test_saved_tensor_hooks_can_offload_to_the_host():
    x, places = _x(), []

    def pack(tensor):
        places.append(tensor.device.type)
        return tensor.cpu()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.to("tpu")):
        y = x.square().sum()
    y.backward()
    assert places == ["tpu"]
    assert x.grad.tolist() == [1.0, 2.0, 4.0]


def test_save_on_cpu_keeps_gradients():
    x = _x()
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        y = x.square().sum()
    y.backward()
    assert x.grad.tolist() == [1.0, 2.0, 4.0]


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomaly_mode_names_the_forward_op():
    x = torch.zeros(3, device="tpu", requires_grad=True)
    with (
        torch.autograd.detect_anomaly(),
        pytest.warns(UserWarning, match="Traceback of forward call"),
        pytest.raises(RuntimeError, match="returned nan values"),
    ):
        (x.sqrt() * 0).sum().backward()


def test_checkpoint_gives_the_same_gradient():
    for reentrant in (False, True):
        x = _x()
        checkpoint(lambda y: y.sin() * y, x, use_reentrant=reentrant).sum().backward()
        torch.testing.assert_close(x.grad, (x.cos() * x + x.sin()).detach())


def test_no_grad_and_enable_grad_nest():
    x = _x()
    with torch.no_grad():
        assert not (x * 2).requires_grad
        with torch.enable_grad():
            assert (x * 2).requires_grad


def test_inference_mode_tensors_cannot_be_saved_for_backward():
    x = _x()
    with torch.inference_mode():
        y = x * 2
        assert y.is_inference()
        y.add_(1)
        assert y[0].item() == 2.0
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        x * y


def test_custom_function_runs_on_the_device():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return 3 * x * x * gradient

    x = _x()
    Cube.apply(x).sum().backward()
    assert x.grad.tolist() == [0.75, 3.0, 12.0]


def test_inplace_change_of_a_saved_tensor_is_refused():
    x = _x()
    y = x.exp()
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_inplace_write_to_a_view_of_a_leaf_is_refused():
    with pytest.raises(RuntimeError, match="view of a leaf Variable"):
        _x()[0].mul_(2)


def test_gradient_through_a_view_and_an_inplace_write_matches_cpu():
    def gradient(device):
        x = _x(device)
        y = x * 1
        y[1:].mul_(x[:2])
        y.sum().backward()
        return x.grad.cpu()

    expected, actual = _both(gradient)
    torch.testing.assert_close(actual, expected)


def test_backward_twice_needs_retain_graph():
    x = _x()
    y = x.square().sum()
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_forward_mode_derivative_matches_cpu():
    import torch.autograd.forward_ad as forward

    def derivative(device):
        x = _x(device).detach()
        with forward.dual_level():
            dual = forward.make_dual(x, torch.ones_like(x))
            return forward.unpack_dual(dual.sin() * dual).tangent.cpu()

    expected, actual = _both(derivative)
    torch.testing.assert_close(actual, expected)


def test_backward_of_an_error_in_python_reaches_the_caller():
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Broken.apply(_x()).sum().backward()


def test_fused_attention_is_the_choice_for_four_dimensions_and_can_be_disabled():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.ones(2, 2, 8, 4, device="tpu")
    assert torch._fused_sdp_choice(q, q, q) == SDPBackend.OVERRIDEABLE.value
    assert torch._fused_sdp_choice(q[0], q[0], q[0]) == SDPBackend.MATH.value
    with sdpa_kernel(SDPBackend.MATH):
        assert torch._fused_sdp_choice(q, q, q) == SDPBackend.MATH.value


@pytest.mark.parametrize("name", ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"])
def test_fused_attention_is_what_other_fused_backends_choose(name):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.ones(2, 2, 8, 4, device="tpu")
    with sdpa_kernel(getattr(SDPBackend, name)):
        assert torch._fused_sdp_choice(q, q, q) == SDPBackend.OVERRIDEABLE.value


def _masked_backward(device, name, arguments, mask):
    moved = [a.to(device) if isinstance(a, torch.Tensor) else a for a in arguments]
    results = getattr(torch.ops.aten, name)(*moved, mask)
    return [None if r is None else r.cpu() for r in results]


def _backward_calls():
    torch.manual_seed(0)
    image, scale, zeros, ones = (
        torch.randn(5, 2, 4, 4),
        torch.rand(2),
        torch.zeros(2),
        torch.ones(2),
    )
    batch = (image.cos(), image, scale, zeros, ones, zeros, ones, True, 1e-5)
    layer = (image.cos(), image, [4], torch.zeros(5, 2, 4, 1), torch.ones(5, 2, 4, 1))
    group = (image.cos(), image, torch.zeros(5, 1), torch.ones(5, 1), scale, 5, 2, 16, 1)
    kernel, steps = torch.randn(3, 2, 3, 3), ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    return {
        "native_batch_norm_backward": batch,
        "native_layer_norm_backward": (*layer, torch.rand(4), torch.rand(4)),
        "native_group_norm_backward": group,
        "convolution_backward": (torch.randn(5, 3, 2, 2), image, kernel, [3], *steps),
        "grid_sampler_2d_backward": (
            image[..., :3, :3].cos(),
            image,
            torch.rand(5, 3, 3, 2),
            0,
            0,
            False,
        ),
    }


@pytest.mark.parametrize("name", list(_backward_calls()))
def test_backward_op_gives_the_results_that_are_asked_for(name):
    arguments = _backward_calls()[name]
    count = 2 if name.startswith("grid") else 3
    for mask in itertools.product([True, False], repeat=count):
        expected = _masked_backward("cpu", name, arguments, list(mask))
        actual = _masked_backward("tpu", name, arguments, list(mask))
        assert [r is not None for r in actual] == list(mask)
        for wanted, ours in zip(expected, actual, strict=True):
            if ours is not None:
                torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("transform", ["jvp", "jacfwd", "forward_ad"])
def test_tangents_that_are_zero_do_not_multiply_with_what_is_not_finite(transform):
    import torch.autograd.forward_ad as forward

    divisor = torch.tensor([0.0, 2.0])

    def derivative(device):
        x = torch.tensor([0.0, 3.0], device=device)
        by = divisor.to(device)
        if transform == "jvp":
            return torch.func.jvp(lambda v: v / by, (x,), (torch.ones_like(x),))[1].cpu()
        if transform == "jacfwd":
            return torch.func.jacfwd(lambda v: by / v)(x).cpu()
        with forward.dual_level():
            dual = forward.make_dual(by, torch.ones_like(by))
            return forward.unpack_dual(x * dual.log()).tangent.cpu()

    expected, actual = _both(derivative)
    torch.testing.assert_close(actual, expected, equal_nan=True)


def test_zeros_without_memory_are_zeros():
    zeros = torch._efficientzerotensor(2, 3, device="tpu")
    assert zeros._is_zerotensor()
    assert zeros.device.type == "tpu"
    assert (zeros + 1).cpu().equal(torch.ones(2, 3))
    assert zeros.T.clone().cpu().equal(torch.zeros(3, 2))
    assert zeros.cpu().equal(torch.zeros(2, 3))
    with pytest.raises(RuntimeError, match="ZeroTensors are immutable"):
        zeros.add_(1)
