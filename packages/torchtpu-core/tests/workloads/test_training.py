# SPDX-License-Identifier: Apache-2.0
"""The step model scales as physics says, and never beats its bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchtpu_core.errors import MeshShapeError, TargetError
from torchtpu_core.hardware import chips
from torchtpu_core.ici.torus import Torus
from torchtpu_core.simulator.rates import Rates
from torchtpu_core.workloads import predict_step
from torchtpu_core.workloads.memory import memory_of
from torchtpu_core.workloads.placement import place
from torchtpu_core.workloads.spec import Hardware, Model, Parallel, Spec, Train

MODEL = Model(layers=8, emb=4096, heads=32, kv_heads=8, mlp=14336, vocab=32000)
SPEC = Spec(
    hardware=Hardware(chip="v5p", topology="4x4x8"),
    model=MODEL,
    train=Train(batch_per_chip=2, sequence=4096),
)


def test_step_is_never_faster_than_its_model_flops_at_peak() -> None:
    step = predict_step(SPEC)
    assert step.step_s > step.flops_per_token * step.tokens / step.chips / 459e12
    assert 0 < step.mfu < step.hfu < 1


def test_activations_in_float32_take_twice_the_memory_and_more_time() -> None:
    # tpu7x computes on bfloat16 as it is.
    spec = replace(SPEC, hardware=Hardware(chip="tpu7x", topology="4x4x8"))
    wide = replace(spec, train=replace(SPEC.train, dtype="f32"))
    assert memory_of(wide)["activations"] == 2 * memory_of(spec)["activations"]
    assert predict_step(wide).parts["elementwise"] == pytest.approx(
        2 * predict_step(spec).parts["elementwise"]
    )


@pytest.mark.parametrize(
    ("chip", "slots", "clock_hz", "hbm"),
    [("v4", 2, 1.05e9, 1200e9), ("v5p", 4, 1.75e9, 2765e9), ("tpu7x", 0, 1, 7380e9)],
)
def test_bfloat16_takes_conversions_where_the_vector_unit_has_float32_only(
    chip, slots, clock_hz, hbm
) -> None:
    spec = replace(SPEC, hardware=Hardware(chip=chip, topology="4x4x8"))
    # Three passes over each of two norms, two over rotated heads, one over each MLP matrix.
    accesses = 6 * 4096 + 2 * (32 * 128 + 2 * 8 * 128) + 3 * 14336
    accesses *= 4 * 8 * 2 * 4096
    converted_s = 4 * accesses / (2 * slots * 1024 * clock_hz) if slots else 0.0
    expected = 2 * accesses / (hbm * 0.867) + converted_s
    assert predict_step(spec).parts["elementwise"] == pytest.approx(expected, rel=0.01)
    wide = replace(spec, train=replace(SPEC.train, dtype="f32"))
    assert predict_step(wide).parts["elementwise"] == pytest.approx(
        4 * accesses / (hbm * 0.867), rel=0.01
    )


def test_parts_add_to_the_step() -> None:
    step = predict_step(SPEC)
    assert sum(step.parts.values()) == pytest.approx(step.step_s)


@pytest.mark.parametrize("policy", ["minimal", "none"])
def test_keeping_more_results_is_never_slower(policy) -> None:
    kept = replace(SPEC, train=replace(SPEC.train, remat=policy))
    assert predict_step(kept).step_s < predict_step(SPEC).step_s


def test_more_slices_are_never_faster_per_step() -> None:
    times = [predict_step(SPEC, slices).step_s for slices in (1, 2, 4, 64)]
    assert times == sorted(times)


def test_fp8_halves_no_more_than_the_products() -> None:
    plain = replace(SPEC, hardware=Hardware(chip="tpu7x", topology="4x4x8"))
    narrow = replace(plain, train=replace(SPEC.train, quantization="fp8"))
    assert 0.5 < predict_step(narrow).step_s / predict_step(plain).step_s < 1


def test_attention_without_a_kernel_moves_every_score_through_hbm() -> None:
    plain = replace(SPEC, train=replace(SPEC.train, flash_attention=False, remat="none"))
    flash = replace(SPEC, train=replace(SPEC.train, remat="none"))
    scores = 8 * 2 * 32 * 4096**2
    moved_s = scores * (20 + 24) / (2765e9 * 0.867)
    added = predict_step(plain).parts["attention"] - predict_step(flash).parts["attention"]
    # Masked pairs are computed too: less than twice the products of the causal kernel.
    assert moved_s < added < moved_s + predict_step(flash).parts["attention"]


def test_scores_in_hbm_take_room_there() -> None:
    plain = replace(SPEC, train=replace(SPEC.train, flash_attention=False))
    assert memory_of(plain)["temporaries"] > 2 * 32 * 4096**2 * 6


def test_pipeline_of_many_microbatches_costs_about_as_much_as_data_parallelism() -> None:
    staged = replace(SPEC, parallel=Parallel(pipeline=4, microbatches=64))
    step = predict_step(staged)
    plain = predict_step(SPEC)
    assert step.tokens == plain.tokens
    assert step.parts["pipeline bubbles"] > 0
    assert step.sent_bytes["pipeline"] > 0
    assert step.step_s == pytest.approx(plain.step_s, rel=0.15)


def test_what_waits_in_the_host_is_exposed_if_its_link_is_slow() -> None:
    short = replace(SPEC, train=replace(SPEC.train, sequence=128, remat="none", offload=True))
    narrow = replace(short, hardware=Hardware(chip="v4", topology="4x4x8"))
    tiny = replace(narrow, model=replace(MODEL, emb=256, mlp=512, heads=2, kv_heads=2))
    assert predict_step(narrow).parts["exposed host link"] == 0
    assert predict_step(tiny).parts["exposed host link"] > 0


def test_mesh_that_does_not_divide_raises() -> None:
    with pytest.raises(MeshShapeError, match="128 chips of a slice cannot form a mesh"):
        predict_step(replace(SPEC, parallel=Parallel(tensor=3)))


def test_number_of_chips_means_the_most_compact_slice() -> None:
    number = replace(SPEC, hardware=Hardware(chip="v5p", topology="128"))
    assert predict_step(number) == predict_step(SPEC)


def test_number_of_chips_without_a_slice_names_the_nearest() -> None:
    with pytest.raises(TargetError, match="Nearest: v5p:4x4x8"):
        predict_step(replace(SPEC, hardware=Hardware(chip="v5p", topology="127")))


@given(
    m=st.integers(1, 5000), k=st.integers(1, 5000), n=st.integers(1, 5000), more=st.integers(0, 999)
)
@settings(max_examples=50)
def test_larger_product_is_never_faster(m, k, n, more) -> None:
    rates = Rates.of(chips().get("v6e"))
    assert rates.matmul_s(m, k, n + more) >= rates.matmul_s(m, k, n)
    assert rates.matmul_s(m, k, n) >= 2 * m * k * n / 918e12


def test_head_of_64_costs_as_much_as_one_of_256_on_a_wide_matrix_unit() -> None:
    rates = Rates.of(chips().get("v6e"))
    assert rates.attention_s(1e9, 64, 64, backward=False) == pytest.approx(
        rates.attention_s(1e9, 256, 256, backward=False)
    )


def test_two_kernels_for_the_gradients_of_attention_compute_seven_products() -> None:
    rates = Rates.of(chips().get("v5p"))

    def seconds(scores, **how) -> float:
        return rates.attention_s(scores, 128, 128, **how)

    product = 2 * 1e9 * 128 / (459e12 * rates.fill)
    one, two = (seconds(1e9, backward=True, fused=fused) for fused in (True, False))
    assert two - one == pytest.approx(2 * product)
    apart = replace(SPEC, train=replace(SPEC.train, fused_attention_backward=False))
    assert predict_step(apart).step_s > predict_step(SPEC).step_s
    assert predict_step(apart).hardware_flops > predict_step(SPEC).hardware_flops


@pytest.mark.parametrize(("name", "slots"), [("v3", 2), ("v4", 2), ("v5e", 4), ("tpu7x", 4)])
def test_vector_unit_starts_what_the_chips_bundles_hold(name, slots) -> None:
    chip = chips().get(name)
    rates, clock = Rates.of(chip, per_core=True), chip.figure("clock_hz")
    assert rates.vector_ops_per_s == pytest.approx(slots * 8 * 128 * clock)
    assert rates.stores_per_s == pytest.approx(8 * 128 * clock)


@given(st.permutations([4, 4, 8]), st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_placed_axes_hold_as_many_chips_as_asked(shape, tensor) -> None:
    torus = Torus(shape=tuple(shape), wrap=(True, True, True))
    placed = place(torus, {"tensor": tensor, "fsdp": 128 // tensor})
    for name, size in (("tensor", tensor), ("fsdp", 128 // tensor)):
        assert size == 1 or placed[name].chips == size


def test_accumulated_gradients_are_reduced_once_and_summed_for_each_further_part() -> None:
    """Four parts cost three sums, and save three reductions of four steps."""
    base = replace(
        SPEC,
        hardware=replace(SPEC.hardware, slices=2),
        parallel=Parallel(fsdp=32),
        train=replace(SPEC.train, batch_per_chip=8, gradient_accumulation_steps=4),
    )
    alone = replace(base, train=base.train.part)
    step, part = predict_step(base), predict_step(alone)
    own = (8 * (4096 * 6144 + 4096**2 + 3 * 4096 * 14336) + 2 * 32000 * 4096) / 32
    sums_s = 3 * 3 * 4 * own / (2765e9 * 0.867)
    assert step.parts["gradient sums"] == pytest.approx(sums_s)
    for name, times in {
        "exposed data": 1,
        "exposed dcn": 1,
        "optimizer": 1,
        "exposed fsdp": 4,
        "matrix products": 4,
        "gathered weights in HBM": 4,
    }.items():
        assert step.parts[name] == pytest.approx(times * part.parts[name]), name
    assert step.tokens == 4 * part.tokens
    assert step.sent_bytes["data"] == pytest.approx(part.sent_bytes["data"])
    assert step.sent_bytes["fsdp"] == pytest.approx(4 * part.sent_bytes["fsdp"])
    once = replace(base, train=replace(base.train, gradient_accumulation_steps=1))
    assert predict_step(once).step_s < step.step_s < 4 * part.step_s


def test_accumulated_gradients_take_a_sum_and_the_activations_of_one_part() -> None:
    train = replace(SPEC.train, batch_per_chip=8)
    whole = memory_of(replace(SPEC, train=train))
    parts = memory_of(replace(SPEC, train=replace(train, gradient_accumulation_steps=4)))
    assert parts["gradients"] == 2 * whole["gradients"]
    assert parts["activations"] == whole["activations"] / 4
    assert parts["temporaries"] == whole["temporaries"] / 4
    assert parts["optimizer state"] == whole["optimizer state"]


def test_gradients_have_the_type_of_their_parameters() -> None:
    train = replace(SPEC.train, batch_per_chip=8, gradient_accumulation_steps=4)
    wide = replace(SPEC, hardware=replace(SPEC.hardware, slices=2), train=train)
    narrow = replace(wide, train=replace(train, weight_bytes=2))
    assert memory_of(narrow)["gradients"] == memory_of(wide)["gradients"] / 2
    before, after = predict_step(wide).parts, predict_step(narrow).parts
    assert after["gradient sums"] == pytest.approx(before["gradient sums"] / 2)
    assert after["exposed dcn"] == pytest.approx(before["exposed dcn"] / 2, rel=0.01)
    # Moments of 8 bytes are read and written; weights as well, and gradients read.
    assert after["optimizer"] / before["optimizer"] == pytest.approx((16 + 6) / (16 + 12))


def test_adafactor_reads_a_gradient_three_times() -> None:
    times = {
        optimizer: predict_step(replace(SPEC, train=replace(SPEC.train, **keys))).parts["optimizer"]
        for optimizer, keys in {
            "adafactor": {"optimizer": "adafactor", "state_bytes": 0},
            "sgd": {"optimizer": "sgd", "state_bytes": 0},
        }.items()
    }
    assert times["adafactor"] / times["sgd"] == pytest.approx((8 + 3 * 4) / (8 + 4))


def test_logits_in_bfloat16_take_half_the_traffic_of_float32() -> None:
    narrow = replace(SPEC, train=replace(SPEC.train, logits_dtype="bfloat16"))
    tokens = 2 * 4096
    saved_s = 4 * tokens * 32000 * 2 / (2765e9 * 0.867)
    saved = predict_step(SPEC).parts["vocabulary"] - predict_step(narrow).parts["vocabulary"]
    assert saved == pytest.approx(saved_s)
    with pytest.raises(ValueError, match="logits_dtype"):
        replace(SPEC.train, logits_dtype="fp8")


def test_elementwise_work_between_kept_products_is_computed_again() -> None:
    elementwise = {
        remat: predict_step(replace(SPEC, train=replace(SPEC.train, remat=remat))).parts[
            "elementwise"
        ]
        for remat in ("full", "minimal_with_context", "none")
    }
    # Forward, again, and two passes backward.
    assert elementwise["minimal_with_context"] == elementwise["full"]
    assert elementwise["none"] == pytest.approx(3 / 4 * elementwise["full"])
