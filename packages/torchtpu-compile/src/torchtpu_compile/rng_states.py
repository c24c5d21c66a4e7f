# SPDX-License-Identifier: Apache-2.0
"""Random ops that a checkpointed region runs twice, with the same state.

For activation checkpointing PyTorch wraps a random op twice: in the forward graph one
wrapper also returns the generator's state, in the backward graph another takes it. The
state never leaves the device here: it is a `(16,)` uint8 tensor, seed and offset as in
``torch.tpu.get_rng_state()``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from torch._prims import rng_prims
from torch.fx import GraphModule, Node
from torchtpu_core.lowering.interpreter import overload_name
from torchtpu_core.lowering.rng import Rng
from torchtpu_core.lowering.table import Lowering

SAVES = rng_prims.run_and_save_rng_state
RESTORES = rng_prims.run_with_rng_state
#: Bytes of a packed state.
STATE_BYTES = 16
#: How far the generator's offset advances for one random op.
RNG_STEP = 4


def random_op(node: Node) -> Any:
    """The op that a wrapper runs; the node's own target if it is no wrapper."""
    if node.target is SAVES:
        return node.args[0]
    return node.args[1] if node.target is RESTORES else node.target


def is_random(node: Node, tables: Mapping[str, Lowering]) -> bool:
    """Whether a node takes a step of the generator."""
    op = random_op(node)
    if not isinstance(op, torch._ops.OpOverload) or node.target is RESTORES:
        return False
    row = tables.get(overload_name(op))
    return row is not None and row.random


def annotate(module: GraphModule) -> None:
    """State what the wrappers return, which the partitioner leaves out, and where states live."""
    for node in module.graph.nodes:
        if node.target not in (SAVES, RESTORES):
            continue
        first = 1 if node.target is SAVES else 2
        args, kwargs = torch.fx.node.map_arg(
            (node.args[first:], node.kwargs), lambda source: source.meta["val"]
        )
        mode = _fake_mode(args)
        if mode is None:
            continue
        with mode:
            value = random_op(node)(*args, **kwargs)
            device = jax.tree.leaves(value)[0].device
            state = torch.empty(STATE_BYTES, dtype=torch.uint8, device=device)
        if device.type != "tpu":
            continue
        if node.target is RESTORES:
            node.meta["val"] = value
            node.args[0].meta["val"] = state
            continue
        node.meta["val"] = (state, value)
        for user in node.users:
            user.meta["val"] = node.meta["val"][user.args[1]]


def _fake_mode(args: Any) -> Any:
    found = [v for v in jax.tree.leaves(args) if isinstance(v, torch.Tensor)]
    return getattr(found[0], "fake_mode", None) if found else None


def pack(rng: Rng) -> jax.Array:
    """A state as bytes, `(16,)` uint8."""
    words = jnp.stack([rng.seed, rng.offset]).astype(np.uint64)
    return lax.bitcast_convert_type(words, np.uint8).reshape(STATE_BYTES)


def unpack(state: jax.Array) -> Rng:
    """The generator at a packed state."""
    words = lax.bitcast_convert_type(state.reshape(2, 8), np.uint64)
    return Rng(words[0], words[1])
