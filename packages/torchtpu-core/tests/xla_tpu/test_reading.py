# SPDX-License-Identifier: Apache-2.0
"""What is read of the compiler's texts."""

from __future__ import annotations

import math

import pytest
from torchtpu_core.ici.groups import span_of
from torchtpu_core.ici.kinds import CollectiveKind
from torchtpu_core.ici.model import network_model
from torchtpu_core.ici.network import Network
from torchtpu_core.ici.slices import parse_slice
from torchtpu_core.simulator import calibration as cal
from torchtpu_core.simulator.rates import Rates
from torchtpu_core.xla_tpu import hlo, timing
from torchtpu_core.xla_tpu.buffers import read_buffers, totals
from torchtpu_core.xla_tpu.compiling import Compiled
from torchtpu_core.xla_tpu.device_groups import groups_of
from torchtpu_core.xla_tpu.liveness import lives
from torchtpu_core.xla_tpu.products import product_of
from torchtpu_core.xla_tpu.report import collectives_of, report_of

V5E = parse_slice("v5e:2x2")


def test_array_whose_rows_do_not_fill_a_tile_is_padded() -> None:
    (array,) = hlo.arrays_of("f32[3,5,100]{2,1,0:T(8,128)}")
    assert array.size_bytes == 3 * 8 * 128 * 4
    (turned,) = hlo.arrays_of("bf16[64,32]{0,1:T(8,128)(2,1)S(1)}")
    assert turned.size_bytes == 32 * 128 * 2
    assert not turned.in_hbm


def test_fusion_without_a_line_has_that_of_its_inner_instruction(programs) -> None:
    module = hlo.read(programs.MATMUL)
    dot = module.find()["dot"]
    assert (dot.root, dot.line, module.line_of(dot)) == (True, "", "model.py:7")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("jit(f)/forward/train.py:43/tanh", "train.py:43"),
        ("jit(f)/forward/train.py:43 in layers.*.mlp-2/tanh", "train.py:43 in layers.*.mlp-2"),
        ("jit(f)/forward/tanh", ""),
    ],
)
def test_line_ends_with_the_module_that_it_calls(name: str, line: str) -> None:
    text = f'f32[8]{{0}} tanh(%a), metadata={{op_name="{name}"}}'
    assert hlo.Instruction("t", "tanh", (), ("a",), text).line == line


@pytest.mark.parametrize(
    ("text", "left", "right", "flops"),
    [
        (
            # The weights' gradient of a depthwise convolution: 13 pairs of place and tap.
            "f32[4,1,3]{2,1,0} convolution(%a, %b), window={size=5 pad=1_1}, "
            "dim_labels=fb0_io0->fb0, batch_group_count=4",
            "f32[2,4,5]",
            "f32[2,4,5]",
            2 * 4 * 2 * 13,
        ),
        ("f32[8,4]{1,0} convolution(%a, %b), dim_labels=bf_io->bf", "f32[8,3]", "f32[3,4]", 192),
        ("f32[8,4]{1,0} dot(%a, %b), lhs_contracting_dims={1}", "f32[8,3]", "f32[3,4]", 192),
        (
            "f32[5,8,4]{2,1,0} dot(%a, %b), lhs_batch_dims={0}, lhs_contracting_dims={2}",
            "f32[5,8,3]",
            "f32[5,3,4]",
            960,
        ),
        # Three taps in a row of four, one zero on each side: 2 + 3 + 3 + 2 taps.
        (
            "f32[1,4,2]{2,1,0} convolution(%a, %b), window={size=3 pad=1_1}, "
            "dim_labels=b0f_0io->b0f",
            "f32[1,4,5]",
            "f32[3,5,2]",
            2 * 10 * 5 * 2,
        ),
    ],
)
def test_product_of_an_instruction_has_the_flops_of_its_definition(
    text: str, left: str, right: str, flops: int
) -> None:
    module = hlo.read("ENTRY %e (a: f32[1]) -> f32[1] {\n  ROOT %r = " + text + "\n}\n")
    (one,) = module.computations["e"]
    found = product_of(one, [*hlo.arrays_of(left), *hlo.arrays_of(right)])
    assert found is not None
    assert found.flops == pytest.approx(flops, rel=0.11)


def test_groups_are_read_in_every_form() -> None:
    assert groups_of("replica_groups=[2,2]<=[4]", 4) == [(0, 1), (2, 3)]
    assert groups_of("source_target_pairs={{0,1},{1,0}}", 2) == [(0, 1), (1, 0)]
    assert groups_of("replica_groups={}", 3) == [(0, 1, 2)]


def test_buffers_are_those_in_hbm_with_lines(programs) -> None:
    module = hlo.read(programs.MATMUL)
    assert totals(programs.BUFFERS) == {
        "argument": 1048576,
        "output": 524288,
        "temporary": 2097152,
        "constant": 0,
    }
    found = read_buffers(programs.BUFFERS, module)
    assert [(b.kind, b.size_bytes, b.line) for b in found] == [
        ("temporary", 2097152, "model.py:7"),
        ("argument", 1048576, ""),
        ("output", 524288, "model.py:7"),
    ]
    assert [(life.name, life.size_bytes) for life in lives(programs.BUFFERS, module)] == [
        ("dot", 2097152)
    ]


def test_time_of_a_product_is_its_copy_and_then_its_matrix_or_memory_time(programs) -> None:
    run = timing.time_of(programs.MATMUL, V5E)
    rate = 819e9 * cal.HBM_ACHIEVED.value
    copy = 512 * 256 * 2 / rate
    memory = (1024 * 512 + 1024 * 256) * 2 / rate
    assert run.step_s == pytest.approx(copy + memory, rel=1e-3)
    assert sum(span.flops for span in run.spans) == 2 * 1024 * 512 * 256
    assert run.waited_s == {"DMA": pytest.approx(copy, rel=1e-3)}


@pytest.mark.parametrize("place", ["", "S(1)"])
def test_copy_beside_the_core_has_what_that_leaves_of_hbm(place) -> None:
    row = f"f32[4096,4096]{{1,0:T(8,128){place}}}"
    copied = "f32[8192,4096]{1,0:T(8,128)S(1)}"
    text = f"""ENTRY %main (x: f32[4096,4096], w: f32[8192,4096]) -> f32[8192,4096] {{
  %x = {row} parameter(0)
  %w = f32[8192,4096]{{1,0:T(8,128)}} parameter(1)
  %start = ({copied}, f32[8192,4096]{{1,0:T(8,128)}}, u32[]{{:S(2)}}) copy-start(%w)
  %y = {row} negate(%x)
  ROOT %done = {copied} copy-done(%start)
}}
"""
    rates = Rates.of(V5E.chip)
    array, copy = 4 * 4096 * 4096, rates.hbm_s(8192 * 4096 * 4)
    run = timing.time_of(text, V5E)
    core = 0.0 if place else rates.hbm_s(2 * array)
    assert run.step_s == pytest.approx(core + copy)
    assert run.step_s == pytest.approx(rates.hbm_s(run.moved_bytes))
    assert run.spans[0].end_s == pytest.approx(run.step_s)


def test_depthwise_convolution_takes_the_vector_unit_less_time_than_the_matrix_unit() -> None:
    shape = "f32[8,64,64,128]{3,2,1,0:T(8,128)S(1)}"
    text = f"""ENTRY %main (x: f32[8,64,64,128], w: f32[7,7,1,128]) -> f32[8,64,64,128] {{
  %x = {shape} parameter(0)
  %w = f32[7,7,1,128]{{3,2,1,0:T(1,128)S(1)}} parameter(1)
  ROOT %c = {shape} convolution(%x, %w), window={{size=7x7 pad=3_3x3_3}}, \
dim_labels=b01f_01io->b01f, feature_group_count=128
}}
"""
    (span,) = timing.time_of(text, V5E).spans
    rates = Rates.of(V5E.chip)
    assert span.end_s == pytest.approx(span.flops / rates.vector_ops_per_s)
    assert span.end_s < rates.fused_matmul_s(8 * 64 * 64 * 128, 49, 1, "f32") / 4


def test_slice_that_is_written_in_place_takes_the_time_of_the_slice() -> None:
    program = """HloModule m, is_scheduled=true

ENTRY %main (cache: f32[1024,1024], row: f32[8,1024], place: s32[]) -> (f32[1024,1024]) {
  %cache = f32[1024,1024]{1,0:T(8,128)} parameter(0)
  %row = f32[8,1024]{1,0:T(8,128)} parameter(1)
  %place = s32[]{:T(128)} parameter(2)
  %zero = s32[]{:T(128)} constant(0)
  %new = f32[1024,1024]{1,0:T(8,128)} dynamic-update-slice(%cache, %row, %place, %zero)
  ROOT %all = (f32[1024,1024]{1,0:T(8,128)}) tuple(%new)
}
"""
    (span,) = [s for s in timing.time_of(program, V5E).spans if s.instruction.name == "new"]
    assert span.hbm_bytes == 2 * 8 * 1024 * 4 + 2 * 4  # and the two numbers of its place


def test_loop_takes_its_body_as_often_as_it_runs(programs) -> None:
    run = timing.time_of(programs.LOOP, V5E)
    body = 2 * 4 * 1024 * 1024 / (819e9 * cal.HBM_ACHIEVED.value)
    assert run.step_s == pytest.approx(10 * body, rel=1e-3)


def test_limit_of_a_counter_of_64_bits_is_that_of_its_lower_half(programs) -> None:
    condition = """  %high = u32[] constant(0)
  %limit = u32[] constant(128)
  %sign = s32[] constant(0)
  ROOT %p = pred[] or(%high, %limit)
"""
    known = 'backend_config={"known_trip_count":{"n":"10"}}'
    once = programs.LOOP.replace(known, "")
    counted = once.replace("  ROOT %p = pred[] constant(true)\n", condition)
    one, many = (timing.time_of(text, V5E).step_s for text in (once, counted))
    assert many == pytest.approx(128 * one, rel=1e-3)


def test_rows_that_a_fusion_writes_into_larger_buffers_are_all_that_it_moves() -> None:
    program = """HloModule m, is_scheduled=true

%rows (p0: f32[1024,8,1024], p1: f32[8,1024], p2: s32[]) -> (f32[1024,8,1024], f32[8,1024]) {
  %p0 = f32[1024,8,1024]{2,1,0:T(8,128)} parameter(0)
  %p1 = f32[8,1024]{1,0:T(8,128)} parameter(1)
  %p2 = s32[]{:T(128)} parameter(2)
  %z = s32[]{:T(128)} constant(0)
  %sin = f32[8,1024]{1,0:T(8,128)} sine(%p1)
  %row = f32[1,8,1024]{2,1,0:T(8,128)} bitcast(%sin)
  %put = f32[1024,8,1024]{2,1,0:T(8,128)} dynamic-update-slice(%p0, %row, %p2, %z, %z)
  ROOT %both = (f32[1024,8,1024]{2,1,0:T(8,128)}, f32[8,1024]{1,0:T(8,128)}) tuple(%put, %sin)
}

ENTRY %main (room: f32[1024,8,1024], x: f32[8,1024], at: s32[]) -> f32[8,1024] {
  %room = f32[1024,8,1024]{2,1,0:T(8,128)} parameter(0)
  %x = f32[8,1024]{1,0:T(8,128)} parameter(1)
  %at = s32[]{:T(128)} parameter(2)
  ROOT %made = (f32[1024,8,1024]{2,1,0:T(8,128)}, f32[8,1024]{1,0:T(8,128)}) \
fusion(%room, %x, %at), kind=kLoop, calls=%rows
}
"""
    (span,) = timing.time_of(program, V5E).spans
    assert span.hbm_bytes == 3 * 8 * 1024 * 4 + 4
    rates = Rates.of(V5E.chip)
    assert span.end_s < 4 * 8 * 1024 / rates.vector_ops_per_s + rates.hbm_s(span.hbm_bytes)


def test_collective_takes_what_the_network_model_says(programs) -> None:
    network = Network.of(V5E)
    span = span_of((0, 1, 2, 3), network)
    expected = network_model(network).collective_time(CollectiveKind.ALL_REDUCE, 4 << 20, span)
    run = timing.time_of(programs.ALL_REDUCE, V5E)
    # Scattered on each of two axes, then gathered on each.
    assert run.step_s == pytest.approx(expected.time_s + 4 * cal.COLLECTIVE_START_S.value)
    assert math.isfinite(run.step_s)


def test_fusion_of_an_all_reduce_and_its_slice_is_a_reduce_scatter() -> None:
    whole, part = "f32[4096,8,128]{2,1,0:T(8,128)}", "f32[1024,8,128]{2,1,0:T(8,128)}"
    text = f"""%scatter (input: f32[4096,8,128]) -> f32[1024,8,128] {{
  %input = {whole} parameter(0)
  %summed = {whole} all-reduce(%input), replica_groups={{{{0,1,2,3}}}}, to_apply=%sum
  %rank = u32[] partition-id()
  ROOT %part = {part} dynamic-slice(%summed, %rank), dynamic_slice_sizes={{1024,8,128}}
}}

ENTRY %main (x: f32[4096,8,128]) -> f32[1024,8,128] {{
  %x = {whole} parameter(0)
  ROOT %fusion = {part} fusion(%x), kind=kCustom, calls=%scatter
}}
"""
    network = Network.of(V5E)
    span = span_of((0, 1, 2, 3), network)
    kind = CollectiveKind.REDUCE_SCATTER
    expected = network_model(network).collective_time(kind, 4096 * 8 * 128 * 4, span)
    run = timing.time_of(text, V5E)
    assert run.step_s == pytest.approx(expected.time_s, rel=0.1)
    assert run.waited_s == {"reduce-scatter": run.step_s}
    (found,) = collectives_of(hlo.read(text))
    assert (found["kind"], found["result_bytes"]) == ("reduce-scatter", 1024 * 8 * 128 * 4)


def test_report_names_fusions_and_their_lines(programs) -> None:
    made = Compiled(target="v5e:2x2", hlo=programs.MATMUL, buffers=programs.BUFFERS, stats={})
    report = report_of(made)
    assert report["fusions"]["count"] == 1
    assert report["fusions"]["largest"][0]["line"] == "model.py:7"
    assert report["fusions"]["largest"][0]["operations"] == ["convolution"]
    assert report["memory"]["peak_bytes"] == 1048576 + 524288 + 2097152


def test_what_a_loop_carries_lives_until_its_result_is_read() -> None:
    text = """ENTRY %main (a: f32[256]) -> f32[256] {
  %a = f32[256]{0} parameter(0)
  %one = f32[256]{0} negate(%a)
  %other = f32[256]{0} negate(%a)
  %both = (f32[256]{0}, f32[256]{0}) tuple(%one, %other)
  %loop = (f32[256]{0}, f32[256]{0}) while(%both), condition=%c, body=%b
  %first = f32[256]{0} get-tuple-element(%loop), index=0
  %late = f32[256]{0} negate(%a)
  ROOT %last = f32[256]{0} add(%late, %first)
}
"""
    buffers = """allocation 1: size 2048, preallocated-temp:
 value: <1 one @0> (size=1024,offset=0): f32[256]{0}
 value: <2 other @0> (size=1024,offset=1024): f32[256]{0}
"""
    found = {life.place: life.last for life in lives(buffers, hlo.read(text))}
    assert found == {0: 7, 1024: 4}


def test_part_of_a_tuple_lives_until_its_own_last_reader() -> None:
    text = """ENTRY %main (a: f32[256]) -> f32[256] {
  %a = f32[256]{0} parameter(0)
  %two = (f32[256]{0}, f32[256]{0}) fusion(%a), kind=kLoop, calls=%f
  %one = f32[256]{0} get-tuple-element(%two), index=0
  %other = f32[256]{0} get-tuple-element(%two), index=1
  %early = f32[256]{0} negate(%one)
  %late = f32[256]{0} add(%early, %early)
  ROOT %last = f32[256]{0} add(%late, %other)
}
"""
    buffers = """allocation 1: size 2048, preallocated-temp:
 value: <1 two{0} @0> (size=1024,offset=0): f32[256]{0}
 value: <2 two{1} @0> (size=1024,offset=1024): f32[256]{0}
"""
    found = {life.place: life.last for life in lives(buffers, hlo.read(text))}
    assert found == {0: 4, 1024: 6}
