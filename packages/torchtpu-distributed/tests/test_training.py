# SPDX-License-Identifier: Apache-2.0
"""Training over ranks equals training on the CPU with the whole batch."""

from __future__ import annotations

import importlib

import pytest
import torch

# Another order of float32 sums over 8 rows and 3 steps of SGD.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs `[8, 6]` and targets `[8, 3]`."""
    generator = torch.Generator().manual_seed(5)
    return torch.randn(8, 6, generator=generator), torch.randn(8, 3, generator=generator)


def on_one_cpu() -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Losses and parameters of the same steps with the whole batch in this process."""
    training = importlib.import_module("training")
    network = training.model()
    losses = training.steps(network, *batch(), 3)
    return torch.stack(losses), [p.detach() for p in network.parameters()]


@pytest.mark.parametrize("bucket_mib", [25, 0.0001])
def test_data_parallel_training_equals_one_process(pair, bucket_mib):
    losses, parameters = on_one_cpu()
    for found_losses, found_parameters in pair("training.data_parallel", bucket_mib, *batch()):
        torch.testing.assert_close(found_losses, losses, **CLOSE)
        torch.testing.assert_close(found_parameters, parameters, **CLOSE)


def test_data_parallel_training_over_four_ranks_of_two_named_backends(four):
    losses, parameters = on_one_cpu()
    for found_losses, found_parameters in four("training.data_parallel", 25, *batch()):
        torch.testing.assert_close(found_losses, losses, **CLOSE)
        torch.testing.assert_close(found_parameters, parameters, **CLOSE)


def test_fully_sharded_training_equals_one_process(pair):
    losses, parameters = on_one_cpu()
    for found_losses, found_parameters in pair("training.fully_sharded", *batch()):
        torch.testing.assert_close(found_losses, losses, **CLOSE)
        torch.testing.assert_close(found_parameters, parameters, **CLOSE)


def test_wrapped_training_equals_one_process(pair):
    losses, parameters = on_one_cpu()
    for found_losses, found_parameters, _ in pair("training.wrapped", *batch(), torch.float32, 3):
        torch.testing.assert_close(found_losses, losses, **CLOSE)
        torch.testing.assert_close(found_parameters, parameters, **CLOSE)


def gradients_on_one_cpu(*dtypes: torch.dtype) -> torch.Tensor:
    """All gradients of the first step, with model and batch rounded to the dtypes in turn."""
    network, rows = importlib.import_module("training").model(), batch()
    for dtype in dtypes:
        network, rows = network.to(dtype), [row.to(dtype) for row in rows]
    torch.nn.functional.mse_loss(network(rows[0]), rows[1]).backward()
    return torch.cat([p.grad.double().flatten() for p in network.parameters()])


def test_wrapped_gradients_in_bfloat16_are_as_exact_as_on_the_cpu(pair):
    exact = gradients_on_one_cpu(torch.bfloat16, torch.float64)
    error_of_cpu = (gradients_on_one_cpu(torch.bfloat16) - exact).norm()
    for _, _, gradients in pair("training.wrapped", *batch(), torch.bfloat16, 1):
        found = torch.cat([gradient.double().flatten() for gradient in gradients])
        # Each rank rounds the gradients of its share, and their mean is rounded once more.
        assert (found - exact).norm() < 2 * error_of_cpu
