# SPDX-License-Identifier: Apache-2.0
"""Diffusers: a conditional U-Net is trained and sampled with a scheduler."""

from __future__ import annotations

import pytest
import torch
from torch import nn

diffusers = pytest.importorskip("diffusers", reason="needs requirements/zoo.txt")


def _unet() -> nn.Module:
    torch.manual_seed(0)
    return diffusers.UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        cross_attention_dim=8,
        attention_head_dim=4,
        norm_num_groups=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )


def _drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _sampled(device: str, scheduler: str) -> torch.Tensor:
    model, steps = _unet().to(device), getattr(diffusers, scheduler)()
    steps.set_timesteps(3, device=device)
    x, text = _drawn(2, 4, 8, 8).to(device) * steps.init_noise_sigma, _drawn(2, 3, 8).to(device)
    with torch.no_grad():
        for t in steps.timesteps:
            noise = model(steps.scale_model_input(x, t), t, text).sample
            x = steps.step(noise, t, x).prev_sample
    return x.cpu()


@pytest.mark.parametrize("scheduler", ["DDIMScheduler", "EulerDiscreteScheduler"])
def test_samples_are_those_of_the_cpu(scheduler: str) -> None:
    expected = _sampled("cpu", scheduler)
    torch.testing.assert_close(_sampled("tpu", scheduler), expected, rtol=1e-3, atol=1e-3)


def _trained(device: str) -> list[float]:
    model, noises = _unet().to(device), diffusers.DDPMScheduler()
    x, noise = _drawn(2, 4, 8, 8).to(device), _drawn(4, 2, 8, 8).reshape(2, 4, 8, 8).to(device)
    text, times = _drawn(2, 3, 8).to(device), torch.tensor([3, 700]).to(device)
    optimizer, found = torch.optim.AdamW(model.parameters(), lr=1e-3), []
    for _ in range(2):
        predicted = model(noises.add_noise(x, noise, times), times, text).sample
        loss = nn.functional.mse_loss(predicted, noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def test_training_steps_give_the_losses_of_the_cpu() -> None:
    assert _trained("tpu") == pytest.approx(_trained("cpu"), rel=1e-4)


def test_pipeline_moved_to_the_device_makes_images() -> None:
    torch.manual_seed(0)
    unet = diffusers.UNet2DModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    images = []
    for device in ("cpu", "tpu"):
        pipeline = diffusers.DDIMPipeline(unet, diffusers.DDIMScheduler()).to(device)
        pipeline.set_progress_bar_config(disable=True)
        generator = torch.Generator().manual_seed(0)  # noise is drawn on the CPU for both
        options = {"batch_size": 1, "num_inference_steps": 2, "output_type": "np"}
        images.append(torch.as_tensor(pipeline(generator=generator, **options).images))
    torch.testing.assert_close(images[1], images[0], rtol=1e-3, atol=1e-3)
