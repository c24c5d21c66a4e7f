# SPDX-License-Identifier: Apache-2.0
"""Batches for the architectures, made on the CPU from a seeded generator.

Each function takes the model's configuration and a generator and returns keyword arguments of the
model's `forward`. Sizes: `B` = 2 examples, `T` = 12 tokens, images of the configuration's size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Batch = dict[str, torch.Tensor]

B, T = 2, 12
_PADDED = 3  # tokens at the end of the second text
_FIRST_WORD, _LAST_WORD = 5, 80  # ids that no configuration gives a meaning
_CLASSES = 2


def _text(generator: torch.Generator, length: int = T) -> torch.Tensor:
    return torch.randint(_FIRST_WORD, _LAST_WORD, (B, length), generator=generator)


def _mask(length: int = T) -> torch.Tensor:
    mask = torch.ones(B, length, dtype=torch.int64)
    mask[1, length - _PADDED :] = 0
    return mask


def _images(config: Any, generator: torch.Generator) -> torch.Tensor:
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None) or 32
    height = size[0] if isinstance(size, list | tuple) else size
    channels = getattr(vision, "num_channels", 3)
    return torch.randn(B, channels, height, height, generator=generator)


def classified_text(config: Any, generator: torch.Generator) -> Batch:
    """A padded text and its class."""
    labels = torch.arange(B) % _CLASSES
    return {"input_ids": _text(generator), "attention_mask": _mask(), "labels": labels}


def masked_text(config: Any, generator: torch.Generator) -> Batch:
    """A padded text and the words that are hidden in it."""
    ids = _text(generator)
    labels = torch.where(torch.rand(ids.shape, generator=generator) < 0.5, ids, -100)
    labels[:, 0] = ids[:, 0]
    return {"input_ids": ids, "attention_mask": _mask(), "labels": labels}


def generated_text(config: Any, generator: torch.Generator) -> Batch:
    """A padded text that the model predicts word by word."""
    ids, mask = _text(generator), _mask()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.where(mask > 0, -100)}


def translated_text(config: Any, generator: torch.Generator) -> Batch:
    """A padded text and a second one that it becomes."""
    return {
        "input_ids": _text(generator),
        "attention_mask": _mask(),
        "labels": _text(generator, T - 2),
    }


def classified_images(config: Any, generator: torch.Generator) -> Batch:
    """Images and their classes."""
    return {"pixel_values": _images(config, generator), "labels": torch.tensor([1, 3])}


def images_alone(config: Any, generator: torch.Generator) -> Batch:
    """Images."""
    return {"pixel_values": _images(config, generator)}


def segmented_images(config: Any, generator: torch.Generator) -> Batch:
    """Images and a class for each pixel."""
    images = _images(config, generator)
    labels = torch.randint(0, 5, (B, *images.shape[-2:]), generator=generator)
    return {"pixel_values": images, "labels": labels}


def detected_objects(config: Any, generator: torch.Generator) -> dict[str, Any]:
    """Images and the boxes of the objects in them."""
    boxes = [0.3 + 0.4 * torch.rand(count, 4, generator=generator) for count in (1, 2)]
    labels = [
        {"class_labels": torch.arange(len(box)), "boxes": box / torch.tensor([1, 1, 2, 2])}
        for box in boxes
    ]
    return {"pixel_values": _images(config, generator), "labels": labels}


def pointed_images(config: Any, generator: torch.Generator) -> Batch:
    """Images and one point on the object wanted."""
    points = torch.rand(B, 1, 1, 2, generator=generator) * 32
    labels = torch.ones(B, 1, 1, dtype=torch.int64)
    images = _images(config, generator)
    return {"pixel_values": images, "input_points": points, "input_labels": labels}


def transcribed_waves(config: Any, generator: torch.Generator) -> Batch:
    """Sound and the letters spoken."""
    waves = torch.randn(B, 600, generator=generator)
    labels = torch.randint(3, config.vocab_size, (B, 4), generator=generator)
    return {"input_values": waves, "labels": labels}


def _spectra(config: Any, generator: torch.Generator, length: int) -> torch.Tensor:
    return torch.randn(B, length, 16, generator=generator)


def transcribed_spectra(config: Any, generator: torch.Generator) -> Batch:
    """A spectrogram and the words spoken."""
    spectra = _spectra(config, generator, 40)
    if config.model_type == "whisper":
        spectra = spectra.transpose(1, 2).contiguous()
    return {"input_features": spectra, "labels": _text(generator, T - 2)}


def classified_spectra(config: Any, generator: torch.Generator) -> Batch:
    """A spectrogram and its class."""
    return {"input_values": _spectra(config, generator, 40), "labels": torch.tensor([1, 0])}


def paired(config: Any, generator: torch.Generator) -> dict[str, Any]:
    """Texts and images that belong together."""
    return {
        "input_ids": _text(generator),
        "attention_mask": _mask(),
        "pixel_values": _images(config, generator),
        "return_loss": True,
    }


def images_in_text(config: Any, generator: torch.Generator) -> Batch:
    """Texts with places for the patches of an image."""
    ids = _text(generator, T + 16)
    ids[:, 2:18] = config.image_token_id
    batch = {
        "input_ids": ids,
        "attention_mask": _mask(T + 16),
        "pixel_values": _images(config, generator),
        "labels": ids.where(ids != config.image_token_id, -100),
    }
    if config.model_type == "gemma3":
        batch["token_type_ids"] = (ids == config.image_token_id).long()
    return batch


def asked_images(config: Any, generator: torch.Generator) -> Batch:
    """A question about an image and the weights of its answers."""
    answers = torch.rand(B, config.num_labels, generator=generator)
    return {
        "input_ids": _text(generator),
        "attention_mask": _mask(),
        "pixel_values": _images(config, generator),
        "labels": answers,
    }


def series(config: Any, generator: torch.Generator) -> Batch:
    """The past of a series, what came next, and the time features of both."""
    past, future = config.context_length + max(config.lags_sequence), config.prediction_length
    return {
        "past_values": torch.randn(B, past, generator=generator),
        "past_time_features": torch.randn(B, past, 1, generator=generator),
        "past_observed_mask": torch.ones(B, past),
        "future_values": torch.randn(B, future, generator=generator),
        "future_time_features": torch.randn(B, future, 1, generator=generator),
    }


def patched_series(config: Any, generator: torch.Generator) -> Batch:
    """The past of a series of several channels."""
    shape = (B, config.context_length, config.num_input_channels)
    return {"past_values": torch.randn(shape, generator=generator)}


def bytes(config: Any, generator: torch.Generator) -> Batch:
    """A text, as the model calls it."""
    ids = _text(generator)
    return {"inputs": ids, "attention_mask": _mask(), "labels": ids}


def trajectories(config: Any, generator: torch.Generator) -> Batch:
    """States, actions and rewards of a few steps."""
    return {
        "states": torch.randn(B, 6, config.state_dim, generator=generator),
        "actions": torch.randn(B, 6, config.act_dim, generator=generator),
        "rewards": torch.randn(B, 6, 1, generator=generator),
        "returns_to_go": torch.randn(B, 6, 1, generator=generator),
        "timesteps": torch.arange(6).expand(B, 6).contiguous(),
        "attention_mask": torch.ones(B, 6, dtype=torch.int64),
    }


INPUTS: dict[str, Callable[[Any, torch.Generator], dict[str, Any]]] = {
    f.__name__: f
    for f in (
        classified_text,
        masked_text,
        generated_text,
        translated_text,
        classified_images,
        images_alone,
        segmented_images,
        detected_objects,
        pointed_images,
        transcribed_waves,
        transcribed_spectra,
        classified_spectra,
        paired,
        images_in_text,
        asked_images,
        series,
        patched_series,
        bytes,
        trajectories,
    )
}
