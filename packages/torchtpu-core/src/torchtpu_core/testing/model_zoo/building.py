# SPDX-License-Identifier: Apache-2.0
"""A row of the table as a model and its batch, on the CPU, from one seed.

No weights are fetched: configurations are made here and weights are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from torchtpu_core.testing.model_zoo.architectures import Architecture
from torchtpu_core.testing.model_zoo.inputs import INPUTS

SEED = 0


def without_dropout(config: Any) -> Any:
    """The configuration with every probability of dropping something at 0, inside it too."""
    import transformers

    for name, value in vars(config).items():
        if isinstance(value, transformers.PretrainedConfig):
            without_dropout(value)
        elif "drop" in name and isinstance(value, int | float) and not isinstance(value, bool):
            setattr(config, name, type(value)(0))
    return config


def build(architecture: Architecture) -> tuple[nn.Module, dict[str, Any]]:
    """The model of a row, with drawn weights, and a batch for it."""
    import transformers  # here, so that the package needs it only where it is used

    torch.manual_seed(SEED)
    config = transformers.AutoConfig.for_model(architecture.name, **_nested(architecture.config))
    name = f"AutoModelFor{architecture.task}" if architecture.task else "AutoModel"
    model = getattr(transformers, name).from_config(without_dropout(config))
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    generator = torch.Generator().manual_seed(SEED)
    return model, INPUTS[architecture.inputs](model.config, generator)


def _nested(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy that may be changed, configurations inside the configuration included."""
    return {
        key: _nested(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
    }


def moved(batch: Any, to: torch.device | str | torch.dtype) -> Any:
    """A batch on another device, or its floating-point tensors in another dtype."""

    def move(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if isinstance(to, torch.dtype) and not x.is_floating_point():
            return x
        return x.to(to)

    return pytree.tree_map(move, batch)
