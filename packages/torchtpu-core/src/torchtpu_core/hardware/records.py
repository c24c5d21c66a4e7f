# SPDX-License-Identifier: Apache-2.0
# data table
"""The built-in chip records.

Figures are per chip unless the field says otherwise. Where sources disagree, the
maker's page wins and the other figure is named. "GB" of HBM capacity on those pages
means 2**30 bytes: what the compiler lets a device allocate does not fit otherwise.

Sources, by the names used below:
    v3, v4, v5e, v5p, v6e, tpu7x docs: docs.cloud.google.com/tpu/docs/<name>.
    jax: tpu_info.py of jax 0.10.2, per TensorCore there, per chip here.
    ISCA23: Jouppi et al., TPU v4, arXiv 2304.01433, table 4, read second-hand.
    book: jax-ml/scaling-book, tpus.md.
    openxla: openxla.org/xla/sparsecore, for tiles and lanes of SparseCores.
    compiler: libtpu 0.0.42.1, compiling ahead of time for the topology; its messages
        on running out of HBM state what a device may allocate.
"""

from __future__ import annotations

from torchtpu_core.hardware.chip import Chip, Wrap
from torchtpu_core.hardware.sourced import Sourced, Status
from torchtpu_core.units import GB, GIB, KIB, MIB, TERA

_GHZ = 10**9
_GBIT = 10**9 / 8
_COMPILER = "compiler: limit stated when a program does not fit"
_RATE_CONFLICT = "; the book has 90 % of it, the rate that is reached"


def _assumed(value: float, source: str) -> Sourced[float]:
    return Sourced(value, source, Status.ASSUMED)


def _usable(gib: float) -> Sourced[int]:
    return Sourced(round(gib * GIB), _COMPILER, Status.MEASURED)


def _slots(value: int) -> Sourced[int]:
    return Sourced(value, "compiler: what one bundle of its schedules holds", Status.MEASURED)


def _per_core(value: int) -> Sourced[int]:
    return Sourced(value, "jax tpu_info.py")


_SQUARE = ((2, 2), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_EDGE_SLICES = ((1, 1), (2, 2), (2, 4), *_SQUARE[1:])
_BELOW_CUBE = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))

V2 = Chip(
    name="v2",
    device_kind="TPU v2",
    geometry_source="jax tpu_info.py; compiler topologies; wrap rule assumed as for v5e",
    cores_per_chip=2,
    devices_per_chip=2,
    sparse_cores_per_chip=0,
    mxu_per_core=1,
    mxu_side=128,
    vector_slots=_slots(2),
    clock_hz=_assumed(0.70 * _GHZ, "background; agrees with a profile in the book to 1.5 %"),
    peak_bf16_flops_per_s=Sourced(46 * TERA, "jax tpu_info.py"),
    hbm_bytes=Sourced(16 * GIB, "jax tpu_info.py: 16e9; the compiler allows 2 x 7.48 GiB"),
    hbm_usable_bytes_per_device=_usable(7.48),
    hbm_bytes_per_s=Sourced(716 * GB, "jax tpu_info.py"),
    vmem_bytes_per_core=_per_core(16 * MIB),
    smem_bytes_per_core=_per_core(16 * KIB),
    cmem_bytes_per_chip=_per_core(0),
    ici_axes=2,
    ici_links_per_chip=4,
    ici_bytes_per_s_per_link=_assumed(60 * GB, "book: 120 GB/s both ways"),
    wrap=Wrap.FULL_AXIS,
    pod_shape=(16, 16),
    pod_chips=256,
    slice_shapes=_SQUARE,
    host_bounds=(2, 2),
)

V3 = Chip(
    name="v3",
    device_kind="TPU v3",
    geometry_source="v3 docs; compiler topologies; SparseCores from ISCA23; wrap rule assumed",
    cores_per_chip=2,
    devices_per_chip=2,
    sparse_cores_per_chip=2,
    mxu_per_core=2,
    mxu_side=128,
    vector_slots=_slots(2),
    clock_hz=_assumed(0.94 * _GHZ, "ISCA23"),
    peak_bf16_flops_per_s=Sourced(123 * TERA, "v3 docs; jax and the book have 140"),
    power_mean_w=_assumed(220.0, "ISCA23"),
    hbm_bytes=Sourced(32 * GIB, "v3 docs"),
    hbm_usable_bytes_per_device=_usable(15.48),
    hbm_bytes_per_s=Sourced(900 * GB, "v3 docs; jax has 825"),
    vmem_bytes_per_core=_per_core(16 * MIB),
    smem_bytes_per_core=_per_core(16 * KIB),
    cmem_bytes_per_chip=_per_core(0),
    ici_axes=2,
    ici_links_per_chip=4,
    ici_bytes_per_s_per_link=Sourced(
        83 * GB,
        "v3 docs: all-reduce 340 TB/s per pod over 1024 x 4 links; "
        "ISCA23 has 70, ASTRA-sim 80, the book 100",
    ),
    wrap=Wrap.FULL_AXIS,
    pod_shape=(32, 32),
    pod_chips=1024,
    slice_shapes=(*_SQUARE, (16, 32), (32, 32)),
    host_bounds=(2, 2),
)

V4 = Chip(
    name="v4",
    device_kind="TPU v4",
    geometry_source="v4 docs; one device per chip is the megacore configuration; openxla",
    cores_per_chip=2,
    devices_per_chip=1,
    sparse_cores_per_chip=4,
    sparse_core_tiles=16,
    sparse_core_lanes=8,
    mxu_per_core=4,
    mxu_side=128,
    vector_slots=_slots(2),
    clock_hz=_assumed(1.05 * _GHZ, "ISCA23"),
    peak_bf16_flops_per_s=Sourced(275 * TERA, "v4 docs"),
    peak_int8_ops_per_s=Sourced(275 * TERA, "v4 docs"),
    power_mean_w=Sourced(170.0, "v4 docs: 90/170/192 W", Status.MEASURED),
    hbm_bytes=Sourced(32 * GIB, "v4 docs"),
    hbm_usable_bytes_per_device=_usable(30.75),
    hbm_bytes_per_s=Sourced(1200 * GB, "v4 docs; jax has 1230"),
    vmem_bytes_per_core=_per_core(16 * MIB),
    smem_bytes_per_core=_per_core(1 * MIB),
    cmem_bytes_per_chip=_per_core(128 * MIB),
    ici_axes=3,
    ici_links_per_chip=6,
    ici_bytes_per_s_per_link=_assumed(
        50 * GB, "ISCA23; the v4 docs' 1.1 PB/s all-reduce of a pod is 45" + _RATE_CONFLICT
    ),
    host_link_bytes_per_s_per_chip=_assumed(16 * GB, "book: PCIe, each way"),
    dcn_achieved_bytes_per_s_per_chip=Sourced(
        81e12 / 8 / 1536 / 4,
        "PaLM, arXiv 2204.02311, section 4: 81 Tb/s from 1536 hosts of 4 chips",
        Status.MEASURED,
    ),
    twists=True,
    wrap=Wrap.WHOLE_CUBES,
    pod_chips=4096,
    slice_shapes=_BELOW_CUBE,
    host_bounds=(2, 2, 1),
)

V5E = Chip(
    name="v5e",
    aliases=("v5litepod", "v5lite"),
    device_kind="TPU v5e",
    pjrt_device_kinds=("TPU v5 lite",),
    geometry_source="v5e docs; book",
    cores_per_chip=1,
    devices_per_chip=1,
    sparse_cores_per_chip=0,
    mxu_per_core=4,
    mxu_side=128,
    vector_slots=_slots(4),
    clock_hz=_assumed(1.5 * _GHZ, "book"),
    peak_bf16_flops_per_s=Sourced(197 * TERA, "v5e docs"),
    peak_int8_ops_per_s=Sourced(393 * TERA, "v5e docs; jax has 394"),
    hbm_bytes=Sourced(16 * GIB, "v5e docs: 16 GB; jax has 17.2e9"),
    hbm_usable_bytes_per_device=_usable(15.75),
    hbm_bytes_per_s=Sourced(819 * GB, "v5e docs"),
    vmem_bytes_per_core=_per_core(128 * MIB),
    smem_bytes_per_core=_per_core(1 * MIB),
    cmem_bytes_per_chip=_per_core(0),
    ici_axes=2,
    ici_links_per_chip=4,
    ici_bytes_per_s_per_link=Sourced(
        50 * GB, "v5e docs: 400 GB/s both ways over 4 links" + _RATE_CONFLICT
    ),
    host_link_bytes_per_s_per_chip=_assumed(16 * GB, "book: PCIe, each way; 15 reached"),
    dcn_bytes_per_s_per_chip=Sourced(2 * 100 * _GBIT / 8, "v5e docs: 2 x 100 Gb/s per 8 chips"),
    wrap=Wrap.FULL_AXIS,
    pod_shape=(16, 16),
    pod_chips=256,
    slice_shapes=_EDGE_SLICES,
    host_bounds=(2, 2),
    single_vm_shapes=((2, 4),),
)

V5P = Chip(
    name="v5p",
    device_kind="TPU v5p",
    pjrt_device_kinds=("TPU v5",),
    geometry_source="v5p docs; openxla",
    cores_per_chip=2,
    devices_per_chip=1,
    sparse_cores_per_chip=4,
    sparse_core_tiles=16,
    sparse_core_lanes=8,
    sparse_core_tile_bytes=Sourced(512 * KIB, "jax tpu_info.py"),
    mxu_per_core=4,
    mxu_side=128,
    vector_slots=_slots(4),
    clock_hz=_assumed(1.75 * _GHZ, "inferred: peak over the width of its matrix units"),
    peak_bf16_flops_per_s=Sourced(459 * TERA, "v5p docs"),
    peak_int8_ops_per_s=Sourced(918 * TERA, "jax tpu_info.py and book"),
    peak_fp8_flops_per_s=Sourced(459 * TERA, "v5p docs"),
    hbm_bytes=Sourced(
        103_000_000_000, "jax tpu_info.py; the v5p docs round to 95 GB, less than is usable"
    ),
    hbm_usable_bytes_per_device=_usable(95.74),
    hbm_bytes_per_s=Sourced(2765 * GB, "v5p docs; jax has 2460"),
    vmem_bytes_per_core=_per_core(64 * MIB),
    smem_bytes_per_core=_per_core(1 * MIB),
    cmem_bytes_per_chip=_per_core(0),
    ici_axes=3,
    ici_links_per_chip=6,
    ici_bytes_per_s_per_link=Sourced(
        100 * GB, "v5p docs: 1200 GB/s both ways over 6 links" + _RATE_CONFLICT
    ),
    dcn_bytes_per_s_per_chip=Sourced(50 * _GBIT, "v5p docs: 50 Gb/s per chip"),
    twists=True,
    wrap=Wrap.WHOLE_CUBES,
    pod_chips=8960,
    slice_shapes=_BELOW_CUBE,
    host_bounds=(2, 2, 1),
)

V6E = Chip(
    name="v6e",
    aliases=("trillium", "v6lite"),
    device_kind="TPU v6e",
    pjrt_device_kinds=("TPU v6 lite",),
    geometry_source="v6e docs; openxla",
    cores_per_chip=1,
    devices_per_chip=1,
    sparse_cores_per_chip=2,
    sparse_core_tiles=16,
    sparse_core_lanes=8,
    sparse_core_tile_bytes=Sourced(256 * KIB, "jax tpu_info.py"),
    mxu_per_core=2,
    mxu_side=256,
    vector_slots=_slots(4),
    clock_hz=_assumed(1.75 * _GHZ, "inferred: peak over the width of its matrix units"),
    peak_bf16_flops_per_s=Sourced(918 * TERA, "v6e docs"),
    peak_int8_ops_per_s=Sourced(1836 * TERA, "v6e docs"),
    peak_fp8_flops_per_s=Sourced(918 * TERA, "tpu7x docs, in the comparison with v6e"),
    hbm_bytes=Sourced(32 * GIB, "v6e docs: 32 GB; jax has 34.4e9"),
    hbm_usable_bytes_per_device=_usable(31.25),
    hbm_bytes_per_s=Sourced(1638 * GB, "v6e docs"),
    vmem_bytes_per_core=_per_core(128 * MIB),
    smem_bytes_per_core=_per_core(1 * MIB),
    cmem_bytes_per_chip=_per_core(0),
    ici_axes=2,
    ici_links_per_chip=4,
    ici_bytes_per_s_per_link=Sourced(
        100 * GB, "v6e docs: 800 GB/s both ways over 4 links" + _RATE_CONFLICT
    ),
    host_link_bytes_per_s_per_chip=_assumed(32 * GB, "book: PCIe Gen5, each way"),
    dcn_bytes_per_s_per_chip=Sourced(100 * _GBIT, "tpu7x docs: 100 Gb/s per chip"),
    wrap=Wrap.FULL_AXIS,
    pod_shape=(16, 16),
    pod_chips=256,
    slice_shapes=_EDGE_SLICES,
    host_bounds=(2, 2),
    single_vm_shapes=((2, 4),),
)

TPU7X = Chip(
    name="tpu7x",
    aliases=("ironwood", "v7x", "7x", "v7", "tpu7"),
    device_kind="TPU v7",
    pjrt_device_kinds=("TPU7x", "TPU7", "TPU v7x"),
    geometry_source="tpu7x docs; openxla; shapes from MaxText accelerator_to_spec_map.py; "
    "links inferred",
    cores_per_chip=2,
    devices_per_chip=2,
    sparse_cores_per_chip=4,
    sparse_core_tiles=16,
    sparse_core_lanes=16,
    sparse_core_tile_bytes=Sourced(512 * KIB, "jax tpu_info.py"),
    mxu_per_core=2,
    mxu_side=256,
    vector_slots=_slots(4),
    clock_hz=_assumed(2.2 * _GHZ, "inferred from the peak; a third-party model has the same"),
    peak_bf16_flops_per_s=Sourced(2307 * TERA, "tpu7x docs"),
    peak_fp8_flops_per_s=Sourced(4614 * TERA, "tpu7x docs"),
    hbm_bytes=Sourced(192 * GIB, "tpu7x docs"),
    hbm_usable_bytes_per_device=_usable(94.75),
    hbm_bytes_per_s=Sourced(7380 * GB, "tpu7x docs"),
    vmem_bytes_per_core=_per_core(64 * MIB),
    smem_bytes_per_core=_per_core(1 * MIB),
    cmem_bytes_per_chip=_per_core(0),
    ici_axes=3,
    ici_links_per_chip=6,
    ici_bytes_per_s_per_link=Sourced(
        100 * GB, "tpu7x docs: 1200 GB/s both ways over 6 links" + _RATE_CONFLICT
    ),
    die_to_die_ratio=Sourced(6.0, "MaxText custom_model.md: 6 times a 1D ICI link"),
    dcn_bytes_per_s_per_chip=Sourced(100 * _GBIT, "tpu7x docs: 100 Gb/s per chip"),
    offloads_collectives=True,
    wrap=Wrap.WHOLE_CUBES,
    pod_chips=9216,
    slice_shapes=((1, 1, 1), *_BELOW_CUBE),
    host_bounds=(2, 2, 1),
)

# The eighth generation is a record of what is published; nothing simulates it yet.
_NEXT26 = "press reports of Cloud Next 2026"

TPU8T = Chip(
    name="tpu8t",
    aliases=("v8t",),
    device_kind="TPU v8t",
    geometry_source=f"{_NEXT26}: 150 cubes of 64 chips; SparseCores, of unpublished number",
    peak_fp4_flops_per_s=_assumed(121e18 / 9600, f"{_NEXT26}: 121 EFLOP/s per 9600 chips"),
    hbm_bytes=Sourced(int(2e15 / 9600), f"{_NEXT26}: 2 PB per 9600 chips", Status.ASSUMED),
    ici_axes=3,
    ici_bytes_per_s_per_link=_assumed(200 * GB, f"{_NEXT26}: 2.4 TB/s both ways, 6 links inferred"),
    wrap=Wrap.WHOLE_CUBES,
    pod_chips=9600,
)

TPU8I = Chip(
    name="tpu8i",
    aliases=("v8i",),
    device_kind="TPU v8i",
    pjrt_device_kinds=("TPU8i",),
    geometry_source=f"jax tpu_info.py; {_NEXT26}: Boardfly network of 1152 chips, 19.2 Tb/s per "
    "chip; sources disagree whether it has SparseCores",
    cores_per_chip=2,
    devices_per_chip=2,
    mxu_per_core=2,
    mxu_side=256,
    peak_bf16_flops_per_s=Sourced(1101 * TERA, "jax tpu_info.py"),
    peak_fp8_flops_per_s=Sourced(8808 * TERA, "jax tpu_info.py"),
    hbm_bytes=Sourced(288 * GIB, "jax tpu_info.py: 309e9"),
    hbm_bytes_per_s=Sourced(8600 * GB, "jax tpu_info.py"),
    vmem_bytes_per_core=_per_core(192 * MIB),
    smem_bytes_per_core=_per_core(1 * MIB),
    pod_chips=1152,
)

RECORDS = (V2, V3, V4, V5E, V5P, V6E, TPU7X, TPU8T, TPU8I)
