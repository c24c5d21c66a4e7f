# SPDX-License-Identifier: Apache-2.0
"""Fusion, schedule, memory and advice of recordings made by hand."""

from __future__ import annotations

import pytest
from torchtpu_core.ici.slices import parse_slice
from torchtpu_core.plan.attention_kernels import score_bytes
from torchtpu_core.plan.figures import memory, roofline, timeline
from torchtpu_core.plan.fusion import fuse
from torchtpu_core.plan.making import make_plan
from torchtpu_core.plan.memory import Memory
from torchtpu_core.plan.placed import Unit
from torchtpu_core.plan.records import Block, Category, Phase, Work
from torchtpu_core.plan.schedule import Pricer, schedule
from torchtpu_core.simulator import calibration as cal
from torchtpu_core.testing.recordings import MIB, op, recording

V5P = parse_slice("v5p:4x4x4")
SQUARE = ((1, 4096, 4096, 4096),)


def _whole(ops, died=None):
    """A recording in which what is only read has a block as well."""
    made = recording(ops, died or {})
    for item in ops:
        for storage, size in zip(item.writes, item.write_bytes, strict=True):
            made.blocks[storage].size_bytes = size
    for storage in {storage for item in ops for storage in item.reads} - made.blocks.keys():
        made.blocks[storage] = Block(MIB, -1, Phase.FORWARD, "script.py:1")
    return made


def _moved(ops, died):
    made = _whole(ops, died)
    return fuse(made.ops, made.blocks, 0)


def test_chain_of_elementwise_work_moves_its_ends_only() -> None:
    ops = [
        op("mul", Work.ELEMENTWISE, (1,), (2,)),
        op("add", Work.ELEMENTWISE, (2,), (3,)),
        op("mm", Work.MATMUL, (3,), (4,)),
    ]
    fusion = _moved(ops, {2: 2, 3: 3, 4: None})
    assert fusion.moved_bytes == [0, 0, 2 * MIB]  # the product reads 1 and writes 4
    assert fusion.inside == {2, 3}


def test_result_that_is_kept_for_later_is_written() -> None:
    ops = [op("mul", Work.ELEMENTWISE, (1,), (2,)), op("add", Work.ELEMENTWISE, (2,), (3,))]
    assert _moved(ops, {}).moved_bytes == [2 * MIB, MIB]  # and not read again


def test_rows_of_half_a_tile_are_moved_with_their_padding() -> None:
    made = _whole([op("convolution", Work.MATMUL, (1,), (2,), products=SQUARE)])
    made.blocks[1].shape, made.blocks[2].shape = (64, 64, 8, 8), (64, 128, 8, 8)
    # 64 features of 64 images fill half of the lanes, 128 features all of them.
    assert fuse(made.ops, made.blocks, 0).moved_bytes == [3 * MIB]


def test_what_stays_in_vmem_moves_nothing_through_hbm() -> None:
    ops = [op("mm", Work.MATMUL, (1,), (2,)), op("mm", Work.MATMUL, (2,), (3,))]
    made = _whole(ops, {2: 2})
    fusion = fuse(made.ops, made.blocks, 0)
    assert fusion.moved_bytes == [2 * MIB, 2 * MIB] and fusion.vmem_bytes == [0, 0]
    staying = fusion.staying(made.ops, made.blocks, {2})
    assert staying.moved_bytes == [MIB, MIB] and staying.vmem_bytes == [MIB, MIB]


def test_elementwise_work_in_vmem_takes_the_vector_unit_its_time() -> None:
    pricer = Pricer(V5P, 1)
    work = op("add", Work.ELEMENTWISE, (1,), (2,))
    inside, bound, _ = pricer.core(work, 0.0, 64 * MIB)
    outside, _, _ = pricer.core(work, 64 * MIB, 0.0)
    assert bound == "vector unit" and 0 < inside < outside / 2


def test_small_step_is_planned_with_its_values_in_vmem() -> None:
    ops = [op("mm", Work.MATMUL, (1,), (2,)), op("mm", Work.MATMUL, (2,), (3,))]
    plan = make_plan(_whole(ops, {2: 2}), V5P, 1, "highest")
    assert plan.memory.resident == {2}
    assert plan.fusion.moved_bytes == [MIB, MIB]


def test_elementwise_work_around_a_product_reads_what_it_kept() -> None:
    ops = [
        op("add", Work.ELEMENTWISE, (1,), (2,)),
        op("mm", Work.MATMUL, (2,), (3,)),
        op("add", Work.ELEMENTWISE, (2, 3), (4,)),
    ]
    # The last sum cannot be part of the first: the product is between them.
    assert _moved(ops, {3: 3}).moved_bytes == [2 * MIB, MIB, 2 * MIB]


def test_update_of_a_parameter_reads_and_writes_each_tensor_once() -> None:
    weight, gradient, mean, square, root = range(1, 6)
    ops = [
        op("mul_", Work.ELEMENTWISE, (weight,), (weight,)),
        op("lerp_", Work.ELEMENTWISE, (mean, gradient), (mean,)),
        op("mul_", Work.ELEMENTWISE, (square,), (square,)),
        op("addcmul_", Work.ELEMENTWISE, (square, gradient, gradient), (square,)),
        op("sqrt", Work.ELEMENTWISE, (square,), (root,)),
        op("add_", Work.ELEMENTWISE, (root,), (root,)),
        op("addcdiv_", Work.ELEMENTWISE, (weight, mean, root), (weight,)),
    ]
    assert sum(_moved(ops, {root: 7}).moved_bytes) == 7 * MIB


def test_factor_made_of_all_gradients_is_made_once() -> None:
    gradients, norms, factor = (1, 2, 3, 4), (11, 12, 13, 14), 21
    ops = [
        *(
            op("norm", Work.ELEMENTWISE, (g,), (n,), write_bytes=(4,))
            for g, n in zip(gradients, norms, strict=True)
        ),
        op("clamp", Work.ELEMENTWISE, norms, (factor,), write_bytes=(4,)),
        *(op("mul_", Work.ELEMENTWISE, (g, factor), (g,)) for g in gradients),
    ]
    for one in ops[4:]:
        one.read_bytes = tuple(4 if s > 4 else MIB for s in one.reads)
    made = _whole(ops, dict.fromkeys((*norms, factor), 9))
    for gradient in gradients:
        made.blocks[gradient].shape = (MIB // 4,)
    moved = sum(fuse(made.ops, made.blocks, 0).moved_bytes)
    assert moved == pytest.approx(3 * 4 * MIB, rel=0.01)


def test_update_reads_a_gradient_that_was_scaled_long_before_once() -> None:
    scaled = op("mul_", Work.ELEMENTWISE, (1,), (1,))
    others = [op("neg", Work.ELEMENTWISE, (10 + i,), (50 + i,)) for i in range(30)]
    update = op("add_", Work.ELEMENTWISE, (2, 1), (2,))
    moved = _moved([scaled, *others, update], {}).moved_bytes
    assert moved[-1] == 2 * MIB


def test_cast_of_a_weight_is_read_by_its_product() -> None:
    ops = [
        op("_to_copy", Work.MOVE, (1,), (2,), write_bytes=(MIB // 2,)),
        op("mm", Work.MATMUL, (2,), (3,), read_bytes=(MIB // 2,)),
    ]
    assert _moved(ops, {2: 2}).moved_bytes == [0, 2 * MIB]


def test_in_place_chain_writes_its_last_version_only() -> None:
    ops = [op("mul_", Work.ELEMENTWISE, (1,), (1,)) for _ in range(3)]
    assert _moved(ops, {1: None}).moved_bytes == [MIB, 0, MIB]


def test_product_is_priced_by_the_matrix_unit() -> None:
    ops = [op("mm", Work.MATMUL, (1, 2), (3,), size=32 * MIB, products=SQUARE)]
    made = recording(ops, {})
    placed = schedule(ops, fuse(ops, made.blocks, 0), Pricer(V5P, 1))
    assert placed.step_s == pytest.approx(2 * 4096**3 / 459e12 * (1 + 128 / 2304), rel=1e-6)
    assert placed.placed[0].bound == "matrix unit"


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_convolution_of_each_feature_by_itself_is_priced_by_the_vector_unit(dtype) -> None:
    places, taps, features = 1 << 20, 49, 96
    products = ((features, places, taps, 1),)
    ops = [op("convolution", Work.MATMUL, (1, 2), (3,), products=products, dtype=dtype)]
    pricer = Pricer(V5P, 1)
    placed = schedule(ops, fuse(ops, recording(ops, {}).blocks, 0), pricer)
    wanted_s = 2 * places * taps * features / pricer.rates.vector_ops_per_s
    assert placed.step_s == pytest.approx(wanted_s, rel=1e-6)
    assert placed.placed[0].bound == "vector unit"


def test_dropout_is_priced_by_the_random_numbers_that_it_draws() -> None:
    count = 1 << 20
    ops = [op("native_dropout", Work.ELEMENTWISE, (1,), (2,), size=4 * count, drawn=count)]
    made = _whole(ops)
    pricer = Pricer(parse_slice("v5e:1x1"), 1)
    placed = schedule(ops, fuse(ops, made.blocks, 0), pricer)
    drawing_s = count * cal.RANDOM_OPS.value / pricer.rates.vector_ops_per_s
    assert placed.step_s == pytest.approx(drawing_s, rel=1e-6)
    assert placed.placed[0].bound == "vector unit"


def test_advice_on_tiles_counts_what_the_matrix_unit_multiplies() -> None:
    depthwise, dense = ((96, 1 << 20, 49, 1),), ((1, 1 << 20, 200, 200),)
    step = [
        op("convolution", Work.MATMUL, (1, 2), (3,), products=depthwise),
        op("mm", Work.MATMUL, (3, 4), (5,), products=dense),
    ]
    advice = make_plan(_whole(step), V5P, 1, "highest").advice
    found = next(item for item in advice if item.title == "Make dimensions multiples of 128")
    useful = (200 / 256) ** 2
    assert found.why.startswith("1 product has ")
    assert found.why.endswith(f"{1 - useful:.0%} of the work is padding")


def test_float32_product_pays_for_six_passes_at_highest_precision() -> None:
    ops = [op("mm", Work.MATMUL, products=SQUARE, dtype="f32")]
    fusion = fuse(ops, {}, 0)
    highest = schedule(ops, fusion, Pricer(V5P, 1, "highest")).step_s
    assert highest == pytest.approx(6 * schedule(ops, fusion, Pricer(V5P, 1, "medium")).step_s)


def _collective(count_of_products: int):
    gather = op(
        "all_gather",
        Work.COLLECTIVE,
        (1,),
        (2,),
        collective="all_gather",
        group=tuple(range(64)),
        moved_bytes=16 * MIB,
    )
    products = [op("mm", Work.MATMUL, (9,), (10,), products=SQUARE)] * count_of_products
    return [gather, *products, op("mm", Work.MATMUL, (2,), (3,), products=SQUARE)]


def test_collective_runs_while_the_core_computes() -> None:
    ops = _collective(40)
    placed = schedule(ops, fuse(ops, recording(ops, {}).blocks, 0), Pricer(V5P, 1))
    gather = next(item for item in placed.placed if item.unit is Unit.ICI)
    assert gather.start_s == 0.0
    assert placed.exposed_s == pytest.approx((1 - cal.ICI_HIDDEN.value) * gather.seconds)


def test_operator_waits_for_the_collective_it_needs() -> None:
    ops = _collective(0)
    placed = schedule(ops, fuse(ops, recording(ops, {}).blocks, 0), Pricer(V5P, 1))
    gather, product = placed.placed
    assert product.start_s == pytest.approx(gather.end_s)
    assert placed.step_s >= gather.seconds + product.seconds


def test_more_slices_are_never_faster() -> None:
    ops = _collective(2)
    ops[0].group = tuple(range(128))
    fusion = fuse(ops, recording(ops, {}).blocks, 0)
    two, four = (schedule(ops, fusion, Pricer(V5P, n)).step_s for n in (2, 4))
    assert two <= four


def _training(dtype: str = "bf16"):
    kept = op("mm", Work.MATMUL, (1,), (2,), products=SQUARE, dtype=dtype)
    norm = op("tanh", Work.MOVE, (2,), (3,))
    again = op("mm", Work.MATMUL, (1,), (4,), Phase.RECOMPUTE, products=SQUARE, dtype=dtype)
    back = op("mm", Work.MATMUL, (3, 4), (5,), Phase.BACKWARD, products=SQUARE, dtype=dtype)
    return recording([kept, norm, again, back], {2: 2, 3: 4, 4: 4})


def test_plan_counts_memory_by_category_and_leaves_recomputation_out_of_mfu() -> None:
    plan = make_plan(_training(), V5P, 1, "highest")
    assert plan.memory.at_peak[Category.ACTIVATIONS] == MIB
    assert plan.mfu / plan.hfu == pytest.approx(2 / 3)
    assert plan.as_json()["simulated"] is True


def test_advice_on_float32_gains_what_the_priced_change_saves() -> None:
    wide = make_plan(_training("f32"), V5P, 1, "highest")
    narrow = make_plan(_training("bf16"), V5P, 1, "highest")
    found = next(item for item in wide.advice if "bfloat16" in item.title)
    assert found.gain_s == pytest.approx(wide.step_s - narrow.step_s, rel=0.02)


def test_advice_on_float64_is_to_take_float32_and_gains_two_of_three_products() -> None:
    made = make_plan(_training("f64"), V5P, 1, "highest")
    titles = [item.title for item in made.advice]
    assert not any("bfloat16" in title for title in titles)
    found = next(item for item in made.advice if "float32" in item.title)
    assert "float64" in found.why
    assert found.gain_s == pytest.approx(made.step_s * 2 / 3, rel=0.02)


def test_advice_on_narrow_heads_is_silent_where_they_fill_the_unit() -> None:
    for width, said in ((64, True), (128, False)):
        ops = [op("sdpa", Work.ATTENTION, (1,), (2,), scores=1e10, head_dims=(width, width))]
        titles = [item.title for item in make_plan(recording(ops, {}), V5P, 1, "high").advice]
        assert any("heads" in title for title in titles) is said


@pytest.mark.parametrize(("width", "said"), [(64, True), (128, False)])
def test_advice_on_narrow_heads_sees_attention_that_is_written_out(width, said) -> None:
    heads, length, more = 2048 // width, 2048, {"work": Work.MATMUL}
    ops = [
        op("bmm", reads=(1,), writes=(2,), products=((heads, length, width, length),), **more),
        op("div", Work.ELEMENTWISE, (2,), (3,)),
        op("_softmax", Work.ELEMENTWISE, (3,), (4,)),
        op("bmm", reads=(4,), writes=(5,), products=((heads, length, length, width),), **more),
        # Not of heads: nothing here goes through a softmax.
        op("bmm", reads=(6,), writes=(7,), products=((4096, 27, 32, 27),), **more),
    ]
    plan = make_plan(recording(ops, {}), V5P, 1, "high")
    found = next((item for item in plan.advice if "heads" in item.title), None)
    assert (found is not None) is said
    if found is not None:
        assert "128 instead of 64" in found.title
        scores, values = (i.seconds for i in plan.schedule.placed if i.index in (0, 3))
        assert found.gain_s == pytest.approx((scores + values) / 2, rel=0.15)


def test_advice_on_a_mesh_off_the_torus_names_the_collective() -> None:
    for group, said in ((tuple(range(8)), False), ((0, 1, 2, 7, 9, 30, 41, 63), True)):
        ops = _collective(1)
        ops[0].group = group
        titles = [item.title for item in make_plan(recording(ops, {}), V5P, 1, "high").advice]
        assert any("along the torus" in title for title in titles) is said


def _summed_gradients(*groups: tuple[int, ...]):
    """Two gradients of 64 megabytes, the first ones summed over groups, and their update."""
    size = 64 * MIB
    ops = [op("mm", Work.MATMUL, (1,), (2 + i,), Phase.BACKWARD, size) for i in range(2)]
    for i, group in enumerate(groups):
        more = {"collective": "all_reduce", "group": group, "moved_bytes": size}
        ops.append(op("allreduce_", Work.COLLECTIVE, (2 + i,), (2 + i,), Phase.BACKWARD, **more))
    ops.append(op("add_", Work.ELEMENTWISE, (2, 3, 4), (4,), Phase.OPTIMIZER, size=size))
    made = recording(ops, {2: None, 3: None, 4: None}, size)
    for number in (2, 3):
        made.blocks[number].category = Category.GRADIENTS
    made.blocks[4].category = Category.OPTIMIZER
    made.world_size = 64
    return make_plan(made, V5P, 1, "highest")


def test_advice_on_the_optimizers_state_is_on_what_replicas_hold() -> None:
    eight = tuple(range(8))
    found = {
        summed: next((a for a in plan.advice if "optimizer's state" in a.title), None)
        for summed in range(3)
        if (plan := _summed_gradients(*([eight] * summed)))
    }
    assert found[0] is None  # stages and experts hold states of their own
    assert "each of 8 ranks" in found[2].why
    # Of 256 MiB moved by the update an eighth is left of what is summed.
    whole = Pricer(V5P, 1).rates.hbm_s(256 * MIB)
    assert found[2].gain_s == pytest.approx(7 / 8 * whole, rel=0.01)
    assert found[1].gain_s == pytest.approx(7 / 16 * whole, rel=0.01)


def test_sum_that_products_of_the_backward_pass_read_is_tensor_parallelism() -> None:
    tensor, data = (0, 1, 2, 3), tuple(range(0, 64, 4))
    more = {"collective": "all_reduce", "moved_bytes": MIB}
    ops = [
        op("mm", Work.MATMUL, (1,), (2,), Phase.BACKWARD),
        op("allreduce_", Work.COLLECTIVE, (2,), (2,), Phase.BACKWARD, group=tensor, **more),
        op("mul", Work.ELEMENTWISE, (2,), (3,), Phase.BACKWARD),
        op("mm", Work.MATMUL, (1, 3), (4,), Phase.BACKWARD),
        op("allreduce_", Work.COLLECTIVE, (4,), (4,), Phase.BACKWARD, group=data, **more),
    ]
    made = recording(ops, {})
    made.world_size = 64
    assert make_plan(made, V5P, 1, "highest").data_parallel == 16


def test_activations_of_one_microbatch_at_a_time_are_kept() -> None:
    ops = []
    for batch in range(3):
        ops.append(op("mm", Work.MATMUL, (1,), (10 + batch,), products=SQUARE))
        ops.append(op("mm", Work.MATMUL, (1,), (20 + batch,), Phase.RECOMPUTE, products=SQUARE))
        ops.append(op("mm", Work.MATMUL, (20 + batch,), (2,), Phase.BACKWARD, products=SQUARE))
    found = make_plan(_whole(ops), V5P, 1, "highest").advice
    kept = next(item for item in found if "Keep more activations" in item.title)
    assert kept.why.startswith("1.00 MiB would be kept")


def test_bars_of_the_timeline_tell_how_long_they_are() -> None:
    ops = [op("mm", Work.MATMUL, (1,), (2 + i,), products=SQUARE) for i in range(2)]
    plan = make_plan(_whole(ops), V5P, 1, "highest")
    (bars,) = timeline(plan)["data"]
    assert bars["customdata"] == pytest.approx([plan.step_s * 1e3 / 2] * 2)


def test_memory_that_does_not_fit_names_the_part_of_the_batch_that_would() -> None:
    kept = {Category.PARAMETERS: 40, Category.ACTIVATIONS: 100, Category.TEMPORARIES: 20}
    assert "50% of the batch" in Memory(at_peak=kept, peak_bytes=160, limit_bytes=100).to_fit
    assert "2 times as many" in Memory(at_peak=kept, peak_bytes=160, limit_bytes=30).to_fit
    assert Memory(at_peak=kept, peak_bytes=160, limit_bytes=160).to_fit == ""


def _moved_by_attention(queries, keys, chip="v5e", heads=4, **more) -> float:
    """Bytes of HBM of attention without kernels, whose operand and result stay in VMEM."""
    scores = float(heads * queries * keys)
    ops = [
        op("mm", Work.MATMUL, (1,), (2,), products=SQUARE),
        op("sdpa", Work.ATTENTION, (2,), (3,), scores=scores, head_dims=(64, 64)),
        op("mm", Work.MATMUL, (3,), (4,), products=SQUARE),
    ]
    if more:
        back = op("sdpa_backward", Work.ATTENTION, (2, 3, 4), (5,), Phase.BACKWARD, scores=scores)
        back.gradient, back.head_dims, back.dtype = True, (64, 64), more["dtype"]
        ops += [back, op("mm", Work.MATMUL, (5,), (6,), Phase.BACKWARD, products=SQUARE)]
    for one in ops:
        if one.work is Work.ATTENTION:
            one.kernel_bytes = scores * score_bytes(2, gradient=one.gradient)
    made = recording(ops, {2: 4, 3: 4, 4: 4, 5: 5} if more else {2: 2, 3: 3})
    made.blocks[3].shape = (1, heads, queries, 64)
    plan = make_plan(made, parse_slice(f"{chip}:1x1"), 1, "highest")
    return plan.fusion.moved_bytes[3 if more else 1]


@pytest.mark.parametrize(
    ("queries", "keys", "stays"), [(256, 256, True), (256, 77, False), (197, 197, True)]
)
def test_scores_that_fit_vmem_in_whole_tiles_move_nothing_through_hbm(queries, keys, stays) -> None:
    # Every score is written, and read twice; operand and result are in VMEM.
    moved = 0 if stays else 12 * 4 * queries * keys
    assert _moved_by_attention(queries, keys) == moved


@pytest.mark.parametrize(
    ("chip", "heads", "stays"),
    [("v5e", 384, True), ("v5e", 480, False), ("v6e", 360, True), ("v6e", 384, False)],
)
def test_scores_stay_in_vmem_as_far_as_libtpus_programs_have_them_there(chip, heads, stays) -> None:
    """Of 96 and 120 MiB on v5e, of 90 and 96 on v6e."""
    assert (_moved_by_attention(256, 256, chip, heads) == 0) == stays


@pytest.mark.parametrize(
    ("heads", "dtype", "bytes_of_score"),
    [(288, "bf16", 0), (384, "bf16", 6), (480, "bf16", 12), (192, "f32", 0), (384, "f32", 12)],
)
def test_gradients_of_scores_stay_in_vmem_beside_these(heads, dtype, bytes_of_score) -> None:
    """As in libtpu's programs of 24, 32 and 40 batches of 12 heads, on v5e."""
    moved = _moved_by_attention(256, 256, heads=heads, dtype=dtype)
    assert moved == pytest.approx(bytes_of_score * heads * 256 * 256, abs=4 * MIB)


def test_attention_without_kernels_takes_the_passes_of_its_products() -> None:
    pricer = Pricer(parse_slice("v5e:1x1"), 1)

    def seconds(**more: object) -> float:
        one = op("sdpa", Work.ATTENTION, (1,), (2,), scores=1e9, head_dims=(128, 128), **more)
        return pricer.core(one, 0.0, 0.0)[0]

    kernels, narrow, wide = seconds(flash=True), seconds(), seconds(dtype="f32")
    assert kernels == narrow < wide < 6 * narrow


def test_figures_reach_from_the_start_of_the_step_to_its_end() -> None:
    plan = make_plan(_training(), V5P, 1, "highest")
    drawn = memory(plan)["data"]
    assert drawn
    for curve in drawn:
        assert (curve["x"][0], curve["x"][-1]) == (0.0, pytest.approx(plan.step_s * 1e3))


def test_product_of_operands_in_vmem_is_at_the_end_of_the_roof() -> None:
    plan = make_plan(_training(), V5P, 1, "highest")
    for item in plan.schedule.placed:
        item.hbm_bytes = 0.0
    roof, *marks = roofline(plan)["data"]
    assert marks
    for mark in marks:
        assert mark["x"] == [pytest.approx(roof["x"][-1], rel=0.01)]


def test_part_of_a_value_that_is_computed_again_reads_a_part_of_its_sources() -> None:
    """As columns of log-probabilities are in each step of a loop over them."""
    wide = {"size": 64 * MIB}
    ops = [op("mm", Work.MATMUL, (1,), (2,), products=SQUARE, **wide)]
    ops += [op("exp", Work.ELEMENTWISE, (2,), (3,), **wide)]
    for n in range(10, 10 + 64):
        ops += [op("neg", Work.ELEMENTWISE, (3,), (n,))]
        ops += [op("mm", Work.MATMUL, (n,), (100 + n,), products=SQUARE)]
    made = recording(ops, dict.fromkeys((2, 3, *range(10, 74)), len(ops)))
    made.blocks[2].size_bytes = made.blocks[3].size_bytes = 64 * MIB
    fusion = fuse(ops, made.blocks, 0)
    assert {3, *range(10, 74)} <= fusion.again.keys()
    # Each product reads its part, and writes its result.
    assert fusion.moved_bytes[3::2] == [2 * MIB] * 64
