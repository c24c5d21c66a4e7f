# SPDX-License-Identifier: Apache-2.0
"""What a backward pass finds kept, by policy: the names of results, and MaxText's for them.

A layer's input is always kept. What it costs to compute the rest again is the business of
`workloads.training`.
"""

from __future__ import annotations

from collections.abc import Iterable

from torchtpu_core.errors import did_you_mean

REMAT_NAMES = ("qkv", "context", "out_proj", "gate_up", "down", "router")
#: MaxText's names of results; a layer's input is always kept.
RESULT_ALIASES = {
    "query_proj": "qkv",
    "key_proj": "qkv",
    "value_proj": "qkv",
    "qkv_proj": "qkv",
    "mlpwi": "gate_up",
    "mlpwi_0": "gate_up",
    "mlpwi_1": "gate_up",
    "mlpwo": "down",
    "decoder_layer_input": "",
}
REMAT_POLICIES: dict[str, tuple[str, ...]] = {
    "full": (),
    "minimal": ("qkv", "out_proj", "gate_up", "down", "router"),
    "none": REMAT_NAMES,
    "save_qkv": ("qkv",),
    "save_attention": ("qkv", "context", "out_proj"),
    # MaxText's names.
    "minimal_offloaded": ("qkv", "out_proj", "gate_up", "down", "router"),
    "minimal_with_context": REMAT_NAMES,
    "save_qkv_proj": ("qkv",),
    "qkv_proj_offloaded": ("qkv",),
    "minimal_flash": REMAT_NAMES,
    "custom": (),
    "save_dot_except_mlp": ("qkv", "out_proj"),
    "save_dot_except_mlpwi": ("qkv", "out_proj", "down"),
    "save_dot_with_context_except_mlp": ("qkv", "context", "out_proj"),
    "save_out_proj": ("out_proj",),
}
#: Policies that a sweep tries.
SWEPT_POLICIES = ("full", "minimal", "none", "save_qkv", "save_attention")


def kept_names(said: Iterable[str]) -> tuple[str, ...]:
    """Names of kept results as this project calls them, each once.

    Raises:
        ValueError: one is no result; the message names the nearest.

    >>> kept_names(["decoder_layer_input", "query_proj", "key_proj", "mlpwo"])
    ('qkv', 'down')
    """
    names = dict.fromkeys(RESULT_ALIASES.get(name, name) for name in said)
    for name in names:
        if name and name not in REMAT_NAMES:
            raise ValueError(
                f"saved holds {name!r}.{did_you_mean(name, (*REMAT_NAMES, *RESULT_ALIASES))} "
                f"It can hold {', '.join(REMAT_NAMES)}."
            )
    return tuple(filter(None, names))
