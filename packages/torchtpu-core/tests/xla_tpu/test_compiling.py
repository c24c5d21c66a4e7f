# SPDX-License-Identifier: Apache-2.0
"""The process in which XLA's TPU compiler runs; the compiler itself where it is installed."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from torchtpu_core.errors import (
    CompilerTargetError,
    CompilerTimeoutError,
    MissingExtraError,
    TPUCompileError,
)
from torchtpu_core.hardware.registry import chips
from torchtpu_core.runtime import tables
from torchtpu_core.targets import libtpu_installed, parse_target
from torchtpu_core.xla_tpu import compiling, lowering, out_of_memory, topology_of
from torchtpu_core.xla_tpu.topologies import NAMES

V5E = parse_target("v5e:2x2")
needs_libtpu = pytest.mark.skipif(
    not libtpu_installed(), reason="libtpu is optional and not under an open licence"
)


@pytest.mark.parametrize(
    ("name", "topology", "options"),
    [
        ("v5e:2x2", "v5e:2x2", {}),
        ("v5e:1x1", "v5e:1x1", {"chips_per_host_bounds": [1, 1, 1]}),
        ("v5p:4x4x8_twisted", "v5p:4x4x8_twisted", {"wrap": [True] * 3}),
        ("tpu7x:2x2x1", "tpu7x:2x2x1", {}),
    ],
)
def test_topology_of_a_slice_has_the_compilers_name(name, topology, options) -> None:
    found = topology_of(parse_target(name))
    assert (found.name, found.options) == (topology, options)


def test_every_chip_is_known_to_the_compiler_or_refused_with_the_known_ones() -> None:
    unknown = [chip.name for chip in chips() if chip.name not in NAMES]
    assert unknown == ["tpu8t", "tpu8i"]
    with pytest.raises(CompilerTargetError, match="v5p:2x2x1"):
        topology_of(parse_target("cpu"))


def test_without_libtpu_the_error_has_the_command(monkeypatch) -> None:
    monkeypatch.setattr(compiling, "libtpu_installed", lambda: False)
    with pytest.raises(MissingExtraError, match=r"pip install 'torchtpu-core\[tpu\]'"):
        compiling.compile_for(b"", V5E)


def test_environment_of_the_compiler_has_no_settings_of_the_user(monkeypatch) -> None:
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--x")
    monkeypatch.setenv("XLA_FLAGS", "--y")
    monkeypatch.setenv("TPU_LIBRARY_PATH", "/z")
    found = compiling.environment()
    assert "LIBTPU_INIT_ARGS" not in found and "XLA_FLAGS" not in found
    assert found["ALLOW_MULTIPLE_LIBTPU_LOAD"] == "true"
    assert found["TPU_LIBRARY_PATH"] == "/z"


def test_compiler_that_does_not_end_is_stopped(monkeypatch) -> None:
    forever = "import threading; threading.Event().wait()"
    monkeypatch.setattr(compiling, "libtpu_installed", lambda: True)
    monkeypatch.setattr(compiling, "_CHILD", forever)
    with pytest.raises(CompilerTimeoutError, match="timeout_s"):
        compiling.compile_for(b"", V5E, timeout_s=0.3)


@pytest.mark.parametrize(
    ("written", "whole"),
    [
        ("HloModule a\n\n%b () -> f32[] {\n}\n\nENTRY %c () -> f32[] {\n}\n", True),
        ("HloModule a\n\n%b () -> f32[] {\n}\n", False),
        ("HloModule a\n\nENTRY %c () -> f32[] {\n  %d = f32[] e(), metadata={}", False),
    ],
)
def test_schedule_counts_as_written_with_the_end_of_its_entry(tmp_path, written, whole) -> None:
    (tmp_path / f"module_1.{compiling._SCHEDULED}").write_text(written)
    (tmp_path / f"module_1.{compiling._BUFFERS}").write_text("BufferAssignment:")
    assert compiling._is_scheduled(tmp_path) is whole


def test_compiler_that_dies_is_an_error_with_its_last_words(monkeypatch) -> None:
    dying = "import os; print('check failed', flush=True); os.abort()"
    monkeypatch.setattr(compiling, "libtpu_installed", lambda: True)
    monkeypatch.setattr(compiling, "_CHILD", dying)
    with pytest.raises(TPUCompileError, match=r"status -6.*\n.*check failed"):
        compiling.compile_for(b"", V5E)


def test_out_of_memory_lists_the_largest_buffers_with_lines(programs) -> None:
    words = "RESOURCE_EXHAUSTED: Ran out of memory on HBM (20.0G) exceeds available HBM (15.75G)."
    error = TPUCompileError.refused("v5e:2x2", words, programs.MATMUL, programs.BUFFERS)
    assert error.out_of_memory
    text = out_of_memory(error, "v5e:2x2").splitlines()
    assert "15.75G" in text[0]
    assert text[2].strip() == "2.00 MiB  temporary bf16[1024,1024] (dot) at model.py:7"


@needs_libtpu
def test_compiled_product_has_memory_and_schedule() -> None:
    structs = [jax.ShapeDtypeStruct(s, np.dtype("float32")) for s in ((256, 512), (512, 128))]
    program = lowering.bytecode(lambda a, b: a @ b, structs, V5E)
    made = compiling.compile_for(program, V5E)
    assert made.stats["argument"] == 4 * (256 * 512 + 512 * 128)
    assert "is_scheduled=true" in made.hlo
    stopped = compiling.compile_for(program, V5E, schedule_only=True)
    # So small a program may be through before it is stopped; what is read is the same.
    assert "is_scheduled=true" in stopped.hlo
    places = "allocation "
    assert stopped.buffers.count(places) == made.buffers.count(places) > 0


@needs_libtpu
@pytest.mark.parametrize(
    ("overload", "shape", "dtype", "rest"),
    [
        ("aten::_linalg_svd", (5, 3), "float32", ()),
        ("aten::_linalg_svd", (2, 3, 5), "complex64", (True,)),
        ("aten::dot", (4,), "int64", None),
        ("aten::upsample_nearest1d", (2, 3, 4), "float32", ([3],)),
    ],
)
def test_row_that_the_compiler_refused_once_compiles(overload, shape, dtype, rest) -> None:
    row = tables.without_a_device()[overload]
    struct = jax.ShapeDtypeStruct(shape, np.dtype(dtype))

    def call(x: jax.Array) -> object:
        return row.function(x, x) if rest is None else row.function(x, *rest)

    made = compiling.compile_for(lowering.bytecode(call, [struct], V5E), V5E)
    assert made.stats["argument"] > 0


@needs_libtpu
def test_program_larger_than_hbm_is_refused_with_its_buffers() -> None:
    # The operand and the result alone are 15.1 of the chip's 15.75 GiB; the product between
    # them is half as large, because the unit that reads it takes bfloat16.
    struct = jax.ShapeDtypeStruct((45056, 45056), np.dtype("float32"))
    program = lowering.bytecode(lambda a: jax.numpy.sin(a) @ a @ a, [struct], V5E)
    with pytest.raises(TPUCompileError) as caught:
        compiling.compile_for(program, V5E)
    assert caught.value.out_of_memory
    assert "7.56 GiB" in out_of_memory(caught.value, V5E.name)
