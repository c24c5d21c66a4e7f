# SPDX-License-Identifier: Apache-2.0
"""HBM of a training step described by a spec, by what it holds.

Parameters, gradients and optimizer state are sharded as the mesh says; of the weights two
layers are gathered at a time; activations are the layers' inputs and what
rematerialisation keeps; one layer's intermediate results and the logits are temporary.
Not modelled: fragmentation, padding to tiles, the compiler's own temporaries.
"""

from __future__ import annotations

from torchtpu_core.hardware.registry import chips
from torchtpu_core.workloads.layers import Layer, layers_of
from torchtpu_core.workloads.meshes import sizes_of, slice_of
from torchtpu_core.workloads.spec import Model, Spec, Train

SCORE_BYTES = 4
LAYERS_GATHERED = 2


def memory_of(spec: Spec) -> dict[str, float]:
    """Bytes of one chip at the peak, by category.

    Raises:
        MeshShapeError: the axes do not divide the slice.
    """
    model, train = spec.model, spec.train
    assert model is not None and train is not None
    where = slice_of(spec)
    sizes = sizes_of(spec.parallel, where.torus.chips if where else 1)
    tensor, stages = sizes["tensor"], sizes["pipeline"]
    tokens = train.part.batch_per_chip * train.sequence
    layers = layers_of(model)
    own = sum(layer.count * _own(layer, sizes) for layer in layers) / stages
    own += model.vocab * model.emb * (1 if model.tied else 2) / (sizes["fsdp"] * tensor)
    found = {"parameters": own * train.weight_bytes}
    gathered = max(_own(layer, sizes) * sizes["fsdp"] for layer in layers)
    if sizes["fsdp"] > 1:
        found["gathered weights"] = LAYERS_GATHERED * gathered * train.activation_bytes
    kept = sum(layer.count * kept_bytes(layer, train, model) for layer in layers) / stages
    found["activations"] = 0.0 if train.offload else kept * tokens
    widest = max(max(m.n * m.uses for m in layer.matrices) for layer in layers)
    logits = tokens * model.vocab * train.logit_bytes
    inside = 2 * widest * tokens * train.activation_bytes
    if not train.flash_attention:
        heads = max(layer.heads for layer in layers)
        inside += heads * tokens * train.sequence * (SCORE_BYTES + train.activation_bytes)
    found["temporaries"] = max(inside, logits)
    if train.backward:
        # The sum of the parts so far lies beside the gradients of the next.
        sums = 2 if train.gradient_accumulation_steps > 1 else 1
        found["gradients"] = sums * own * train.gradient_bytes
        found["optimizer state"] = own * train.state_bytes
    return found


def limit_bytes(spec: Spec) -> int:
    """HBM that the devices of one chip can use."""
    chip = chips().get(spec.hardware.chip)
    return chip.hbm_device_bytes * (chip.devices_per_chip or 1)


def _own(layer: Layer, sizes: dict[str, int]) -> float:
    """Parameters of a layer on one chip."""
    total = 0.0
    for matrix in layer.matrices:
        shards = sizes["fsdp"] * (sizes["tensor"] if matrix.split else 1)
        shards *= sizes["expert"] if matrix.copies > 1 else 1
        total += matrix.parameters / shards
    return total


def kept_bytes(layer: Layer, train: Train, model: Model) -> float:
    """Bytes per token that one layer keeps for its backward pass, on one chip."""
    if not train.backward:
        return 0.0
    widths = float(model.emb)
    for matrix in layer.matrices:
        if matrix.name in train.kept:
            widths += matrix.n * matrix.uses
    if "context" in train.kept:
        widths += layer.heads * layer.value_dim
    return widths * train.activation_bytes
