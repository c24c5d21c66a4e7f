# SPDX-License-Identifier: Apache-2.0
"""3-D convolutions: values and gradients, the form XLA:CPU gets, and what a chip model prices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torchtpu_core.lowering import convolution_slices, mxu
from torchtpu_core.lowering.convolution import convolution
from torchtpu_core.runtime import compiling
from torchtpu_core.testing.tolerance import TOLERANCE

CASES = {
    "plain": (F.conv3d, (2, 3, 5, 6, 7), (4, 3, 3, 3, 3), {}),
    "padded": (F.conv3d, (2, 3, 5, 6, 7), (4, 3, 3, 3, 3), {"padding": (1, 0, 2)}),
    "same": (F.conv3d, (1, 2, 4, 5, 6), (2, 2, 2, 3, 4), {"padding": "same"}),
    "strided": (F.conv3d, (2, 3, 7, 6, 9), (4, 3, 3, 2, 3), {"stride": (2, 3, 1), "padding": 1}),
    "dilated": (F.conv3d, (1, 3, 8, 7, 9), (4, 3, 3, 2, 2), {"dilation": (2, 3, 1)}),
    "grouped": (F.conv3d, (2, 4, 5, 5, 5), (6, 2, 3, 2, 3), {"groups": 2, "stride": 2}),
    "depthwise": (F.conv3d, (2, 4, 5, 5, 5), (8, 1, 3, 3, 3), {"groups": 4, "padding": 1}),
    "flat kernel": (F.conv3d, (2, 3, 5, 6, 6), (4, 3, 1, 3, 3), {"padding": (0, 1, 1)}),
    "deep kernel": (F.conv3d, (2, 3, 6, 4, 4), (4, 3, 6, 1, 1), {}),
    "along the depth": (
        F.conv3d,
        (2, 3, 7, 4, 5),
        (4, 3, 3, 1, 1),
        {"stride": (2, 1, 2), "padding": (1, 0, 1)},
    ),
    "point": (F.conv3d, (2, 3, 4, 4, 4), (4, 3, 1, 1, 1), {"stride": 2}),
    "transposed": (F.conv_transpose3d, (2, 3, 4, 5, 3), (3, 4, 3, 2, 3), {"padding": (1, 0, 1)}),
    "transposed strided": (
        F.conv_transpose3d,
        (2, 4, 3, 4, 3),
        (4, 3, 3, 2, 3),
        {"stride": (2, 3, 2), "output_padding": (1, 2, 0), "groups": 2, "dilation": (2, 1, 1)},
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_match_cpu(case, dtype):
    function, volume, kernel, options = CASES[case]
    torch.manual_seed(0)
    operands = [torch.randn(volume), torch.randn(kernel), torch.randn(_channels(case))]
    operands = [x.to(dtype) for x in operands]
    results = []
    for device in ("cpu", "tpu"):
        moved = [x.detach().to(device).requires_grad_() for x in operands]
        out = function(*moved, **options)
        torch.manual_seed(1)
        out.backward(torch.randn(out.shape).to(out))
        results.append([out.detach(), *(x.grad for x in moved)])
    rtol, atol = TOLERANCE[dtype]
    for expected, actual in zip(*results, strict=True):
        # Sums that cancel are as exact as their largest terms.
        bound = max(atol, rtol * expected.abs().max().item())
        torch.testing.assert_close(actual.cpu(), expected, rtol=rtol, atol=bound)


def _channels(case):
    function, _, kernel, options = CASES[case]
    if function is F.conv3d:
        return kernel[0]
    return kernel[1] * options.get("groups", 1)


def _convolutions(platform):
    x, kernel = (jax.ShapeDtypeStruct((1, 2, *(n,) * 3), np.float32) for n in (6, 3))
    function = lambda x, w: convolution(x, w, None, [1], [0], [1], False, [0], 1)  # noqa: E731
    with mxu.for_platform(platform):
        text = jax.jit(function).lower(x, kernel).as_text()
    return [line for line in text.splitlines() if "stablehlo.convolution" in line]


def test_xla_cpu_convolves_images_and_a_tpu_volumes():
    (images,), (volumes,) = _convolutions("cpu"), _convolutions("tpu")
    assert "[b, f, 0, 1]" in images
    assert "[b, f, 0, 1, 2]" in volumes


def test_a_chip_model_prices_whole_volumes():
    device = jax.devices("cpu")[0]
    place = jax.sharding.SingleDeviceSharding(device)
    avals = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=place)
        for shape in ((1, 64, 16, 32, 32), (64, 64, 3, 3, 3))
    ]

    def function(x, w):
        return (convolution(x, w, None, [1], [1], [1], False, [0], 1),)

    compiled = compiling.compile_function(function, avals, (), "volumes")
    with convolution_slices.volumes_whole():
        whole = compiling.compile_function(lambda x, w: function(x, w), avals, (), "volumes")
    assert compiled.device_time_ps == whole.device_time_ps
    assert compiled.device_time_ps > 0 or compiling.target().target.slice_ is None
