# SPDX-License-Identifier: Apache-2.0
"""Programs in the form in which XLA prints them, written by hand for the tests."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

MATMUL = """\
HloModule jit_f, is_scheduled=true

%fused (p0: bf16[1024,512], p1: bf16[512,256]) -> bf16[1024,256] {
  %p0 = bf16[1024,512]{1,0:T(8,128)(2,1)} parameter(0)
  %p1 = bf16[512,256]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  ROOT %c = bf16[1024,256]{1,0:T(8,128)(2,1)} convolution(%p0, %p1), dim_labels=bf_io->bf, \
metadata={op_name="jit(f)/forward/model.py:7/dot_general"}
}

ENTRY %main (x: bf16[1024,512], w: bf16[512,256]) -> bf16[1024,256] {
  %x = bf16[1024,512]{1,0:T(8,128)(2,1)} parameter(0), metadata={op_name="x"}
  %w = bf16[512,256]{1,0:T(8,128)(2,1)} parameter(1), metadata={op_name="w"}
  %copy-start = (bf16[512,256]{1,0:T(8,128)(2,1)S(1)}, bf16[512,256]{1,0:T(8,128)(2,1)}, \
u32[]{:S(2)}) copy-start(%w)
  %copy-done = bf16[512,256]{1,0:T(8,128)(2,1)S(1)} copy-done(%copy-start)
  ROOT %dot = bf16[1024,256]{1,0:T(8,128)(2,1)} fusion(%x, %copy-done), kind=kOutput, calls=%fused
}
"""

LOOP = """\
%body (t: (s32[], f32[1024,1024])) -> (s32[], f32[1024,1024]) {
  %t = (s32[], f32[1024,1024]{1,0:T(8,128)}) parameter(0)
  %g = f32[1024,1024]{1,0:T(8,128)} get-tuple-element(%t), index=1
  %e = f32[1024,1024]{1,0:T(8,128)} negate(%g)
  ROOT %r = (s32[], f32[1024,1024]{1,0:T(8,128)}) tuple(%g, %e)
}

%cond (t: (s32[], f32[1024,1024])) -> pred[] {
  %u = (s32[], f32[1024,1024]{1,0:T(8,128)}) parameter(0)
  ROOT %p = pred[] constant(true)
}

ENTRY %main (a: (s32[], f32[1024,1024])) -> (s32[], f32[1024,1024]) {
  %a = (s32[], f32[1024,1024]{1,0:T(8,128)}) parameter(0)
  ROOT %w = (s32[], f32[1024,1024]{1,0:T(8,128)}) while(%a), condition=%cond, body=%body, \
backend_config={"known_trip_count":{"n":"10"}}
}
"""

ALL_REDUCE = """\
ENTRY %main (a: f32[1048576]) -> f32[1048576] {
  %a = f32[1048576]{0:T(1024)} parameter(0)
  ROOT %r = f32[1048576]{0:T(1024)} all-reduce(%a), replica_groups={{0,1,2,3}}, to_apply=%sum
}
"""

BUFFERS = """\
BufferAssignment:
allocation 0: size 1048576, parameter 0, shape |bf16[1024,512]| at ShapeIndex {}:
 value: <1 x @0> (size=1048576,offset=0): bf16[1024,512]{1,0:T(8,128)(2,1)}
allocation 1: size 524288, maybe-live-out:
 value: <2 dot @0> (size=524288,offset=0): bf16[1024,256]{1,0:T(8,128)(2,1)}
allocation 2: size 2097152, preallocated-temp:
 value: <3 dot @0> (size=2097152,offset=0): bf16[1024,1024]{1,0:T(8,128)(2,1)}
allocation 3: size 262144, color 1, preallocated-temp:
 value: <4 copy-done @0> (size=262144,offset=0): bf16[512,256]{1,0:T(8,128)(2,1)S(1)}
allocation 4: size 512, thread-local:
 value: <5 c @0> (size=512,offset=0): f32[]{:T(128)}
"""


@pytest.fixture
def programs() -> SimpleNamespace:
    return SimpleNamespace(MATMUL=MATMUL, LOOP=LOOP, ALL_REDUCE=ALL_REDUCE, BUFFERS=BUFFERS)
