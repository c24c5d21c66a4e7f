# SPDX-License-Identifier: Apache-2.0
"""Parameters and operations against published totals."""

from __future__ import annotations

from pathlib import Path

import pytest
from torchtpu_core.workloads import read_spec
from torchtpu_core.workloads.flops import flops_per_token
from torchtpu_core.workloads.layers import layers_of, parameters
from torchtpu_core.workloads.spec import Model

SPECS = Path(__file__).parents[4] / "benchmarks" / "validation" / "specs"


def _model(name: str) -> Model:
    model = read_spec(SPECS / name).model
    assert model is not None
    return model


@pytest.mark.parametrize(
    ("spec", "published_billions"),
    [
        ("ironwood/llama3.1-405b-fp8.toml", 405.9),
        ("trillium/llama3.1-8b-4x4.toml", 8.03),
        ("palm/2pods.toml", 540.35),
        ("trillium/mixtral-8x22b.toml", 140.6),
        ("ironwood/deepseek3-fp8.toml", 671.0),
        ("ironwood/qwen3-235b.toml", 235.1),
        ("mlperf/v5p-2048.toml", 175.0),
    ],
)
def test_parameters_of_a_model_are_those_published(spec, published_billions) -> None:
    assert parameters(_model(spec)) / 1e9 == pytest.approx(published_billions, rel=0.005)


def test_flops_per_token_times_tokens_are_those_of_a_logged_step() -> None:
    # tpu-recipes, Llama 3.1 8B on v6e-256: 417.397 TFLOP/s for 4 x 8192 tokens in 4.546 s.
    logged = 417.397e12 * 4.546 / (4 * 8192)
    model = _model("trillium/llama3.1-8b-16x16.toml")
    assert flops_per_token(model, 8192, "full") == pytest.approx(logged, rel=0.001)


def test_causal_attention_counts_half_of_full() -> None:
    model = Model(layers=2, emb=256, heads=2, mlp=512)
    none, half, full = (flops_per_token(model, 4096, kind) for kind in ("none", "causal", "full"))
    assert full - none == pytest.approx(2 * (half - none))


def test_layers_of_a_windowed_model_are_local_and_global() -> None:
    model = Model(layers=12, emb=64, heads=2, head_dim=8, mlp=64, window=16, global_every=6)
    assert {layer.window: layer.count for layer in layers_of(model)} == {16: 10, 0: 2}


def test_layers_with_experts_follow_the_dense_ones() -> None:
    model = _model("ironwood/deepseek3-fp8.toml")
    assert {layer.routed: layer.count for layer in layers_of(model)} == {0: 3, 8: 58}
