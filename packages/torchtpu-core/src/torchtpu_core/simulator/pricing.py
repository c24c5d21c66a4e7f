# SPDX-License-Identifier: Apache-2.0
"""Prices a program on a chip: counted work in, device time out.

A roofline: matrix units, vector unit and HBM work at the same time, so the slowest of
them decides; collectives follow each other, a part of them behind that work where there is
enough of it, and a launch costs a fixed time.
Not modelled: the shapes of matrix products (small ones use the matrix unit badly), the
traffic of intermediate values that do not stay in VMEM, and which work a collective waits
for: the part that is hidden is that of published training runs. All results are simulated
times.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchtpu_core.hardware.chip import Chip
from torchtpu_core.hardware.sourced import Sourced, Status
from torchtpu_core.ici.slices import Slice
from torchtpu_core.simulator.calibration import ICI_HIDDEN
from torchtpu_core.simulator.collective_pricing import collective_s
from torchtpu_core.simulator.cost import MatmulClass, Precision, ProgramCost
from torchtpu_core.simulator.rates import vector_slots
from torchtpu_core.units import seconds_to_ps

HBM_ACHIEVABLE_FRACTION = Sourced(
    0.90,
    "the rate in the cost model of libtpu's compiler for v5e: 737.7 of 819 GB/s",
    Status.MEASURED,
)
LAUNCH_OVERHEAD_S = Sourced(
    1e-6,
    "chosen: the time of one ICI hop stands in for the unpublished time to start a program",
    Status.ASSUMED,
)
VECTOR_LANES = Sourced(8 * 128, "jax tpu_info.py: 8 sublanes of 128 lanes", Status.DATASHEET)
TRANSCENDENTAL_SLOTS = Sourced(
    1, "compiler: bundles for v2 to tpu7x hold 1 of them", Status.MEASURED
)
# The matrix unit multiplies bfloat16; float32 products are sums of products of parts.
F32_PASSES = {
    Precision.DEFAULT: Sourced(1, "jax.lax.Precision.DEFAULT: one bfloat16 product"),
    Precision.HIGH: Sourced(3, "jax.lax.Precision.HIGH: three bfloat16 products"),
    Precision.HIGHEST: Sourced(6, "jax.lax.Precision.HIGHEST: six bfloat16 products"),
}

_WIDE_FLOATS = ("f32", "f64", "complex<f32>", "complex<f64>")
# A complex product is four real ones; its flops are counted as one real product's.
_COMPLEX_PRODUCTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Simulated time of one run of a program on one device, in picoseconds.

    Attributes:
        matrix_ps: matrix units at their peak.
        vector_ps: vector unit at its peak.
        hbm_ps: HBM at the rate that is reached.
        ici_ps: all collectives.
        launch_ps: starting the program.
    """

    matrix_ps: int
    vector_ps: int
    hbm_ps: int
    ici_ps: int
    launch_ps: int

    @property
    def compute_ps(self) -> int:
        """The slowest of the units that work at the same time."""
        return max(self.matrix_ps, self.vector_ps, self.hbm_ps)

    @property
    def hidden_ps(self) -> int:
        """The part of the collectives that runs behind other work."""
        return min(round(ICI_HIDDEN.value * self.ici_ps), self.compute_ps)

    @property
    def exposed_ps(self) -> int:
        """The part of the collectives that the core waits for."""
        return self.ici_ps - self.hidden_ps

    @property
    def total_ps(self) -> int:
        """Device time of the whole run."""
        return self.compute_ps + self.exposed_ps + self.launch_ps

    @property
    def bound_by(self) -> str:
        """Which of launch, ici, matrix, vector and hbm takes longest."""
        parts = {
            "matrix": self.matrix_ps,
            "vector": self.vector_ps,
            "hbm": self.hbm_ps,
            "ici": self.ici_ps,
            "launch": self.launch_ps,
        }
        return max(parts, key=parts.__getitem__)


def price(cost: ProgramCost, where: Chip | Slice) -> Price:
    """The simulated time of a program on one device of a chip or of a slice.

    With a chip alone, the devices of a collective are taken to be a line.

    Raises:
        UnpublishedFigureError: the chip's maker has not published a figure it needs.
    """
    chip = where.chip if isinstance(where, Slice) else where
    seconds_on_ici = sum(
        collective.count * collective_s(collective, where, cost.devices)
        for collective in cost.collectives
    )
    return Price(
        matrix_ps=seconds_to_ps(matrix_s(cost, chip)),
        vector_ps=seconds_to_ps(vector_s(cost, chip)),
        hbm_ps=seconds_to_ps(hbm_s(cost.bytes_hbm, chip)),
        ici_ps=seconds_to_ps(seconds_on_ici),
        launch_ps=seconds_to_ps(LAUNCH_OVERHEAD_S.value),
    )


def matrix_s(cost: ProgramCost, chip: Chip) -> float:
    """Seconds of the matrix units at their peak for each class of work."""
    return sum(flops / matmul_flops_per_s(kind, chip) for kind, flops in cost.matmul_flops.items())


def matmul_flops_per_s(kind: MatmulClass, chip: Chip) -> float:
    """Peak rate of one device for a class of matrix work."""
    devices = chip.devices_per_chip or 1
    narrow = _narrow_peak(kind.dtype, chip)
    if narrow is not None:
        return narrow / devices
    peak = chip.figure("peak_bf16_flops_per_s") / devices
    if kind.dtype in _WIDE_FLOATS:
        peak /= F32_PASSES[kind.precision].value
    return peak / _COMPLEX_PRODUCTS if kind.dtype.startswith("complex") else peak


def vector_s(cost: ProgramCost, chip: Chip) -> float:
    """Seconds of the vector unit, whose slots work at the same time."""
    if not (cost.elementwise_flops or cost.transcendentals):
        return 0.0
    cores = (chip.cores_per_chip or 1) / (chip.devices_per_chip or 1)
    lanes_per_s = VECTOR_LANES.value * cores * chip.figure("clock_hz")
    return max(
        cost.elementwise_flops / (vector_slots(chip) * lanes_per_s),
        cost.transcendentals / (TRANSCENDENTAL_SLOTS.value * lanes_per_s),
    )


def hbm_s(bytes_hbm: int, chip: Chip) -> float:
    """Seconds to move bytes between one device and its share of the chip's HBM."""
    per_chip = chip.figure("hbm_bytes_per_s") * HBM_ACHIEVABLE_FRACTION.value
    return bytes_hbm / (per_chip / (chip.devices_per_chip or 1))


def _narrow_peak(dtype: str, chip: Chip) -> float | None:
    """The peak for 8-bit and 4-bit operands; None where bf16's rate applies."""
    if dtype in ("i8", "ui8", "i4", "ui4"):
        peak = chip.peak_int8_ops_per_s
    elif dtype.startswith("f8"):
        peak = chip.peak_fp8_flops_per_s
    elif dtype.startswith("f4"):
        peak = chip.peak_fp4_flops_per_s or chip.peak_fp8_flops_per_s
    else:
        return None
    return peak.value if peak is not None else None
