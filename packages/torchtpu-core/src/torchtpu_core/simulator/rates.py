# SPDX-License-Identifier: Apache-2.0
"""How fast the units of one chip, or one of its cores, work.

Matrix products are priced with the fill of the matrix unit and the padding of its
tiles, attention with the part of the unit that a narrow head leaves idle and the
vector work of the softmax. Not modelled: instruction schedules, VMEM misses.

Legend: ``[m, k] x [k, n]``, ``S`` side of the matrix unit.

Reference: Jouppi et al., In-datacenter performance analysis of a TPU (2017), for the
systolic unit; Dao, FlashAttention-2 (2023), for the counts of attention.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchtpu_core.hardware.chip import Chip
from torchtpu_core.simulator import calibration as cal
from torchtpu_core.units import ceil_div

SUBLANES = 8
LANES = 128
WORD_BYTES = 4


def vector_slots(chip: Chip) -> int:
    """Operations on whole registers that one core starts in a cycle."""
    return (chip.vector_slots or cal.VECTOR_SLOTS).value


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of one chip or core, as data sheets state them.

    Attributes:
        flops_per_s: matrix rate by element type: bf16, f32, f64, int8, fp8.
        mxu_side: S.
        hbm_bytes_per_s: reads and writes together.
        vector_ops_per_s: element operations of all lanes and slots.
        stores_per_s: elements that leave the vector unit, one slot of a bundle.
        cores: TensorCores that the work is spread over.
        float32_vectors: the vector unit converts bfloat16 to float32 and back.
    """

    flops_per_s: dict[str, float]
    mxu_side: int
    hbm_bytes_per_s: float
    vector_ops_per_s: float
    stores_per_s: float
    cores: int
    float32_vectors: bool = False

    @classmethod
    def of(cls, chip: Chip, *, per_core: bool = False) -> Rates:
        """The rates of a generation."""
        cores = chip.cores_per_chip or 1
        share = 1 / cores if per_core else 1.0
        bf16 = chip.figure("peak_bf16_flops_per_s")
        int8 = chip.peak_int8_ops_per_s.value if chip.peak_int8_ops_per_s else bf16
        fp8 = chip.peak_fp8_flops_per_s.value if chip.peak_fp8_flops_per_s else bf16
        peaks = {"bf16": bf16, "f32": bf16, "f64": bf16, "int8": int8, "fp8": max(fp8, bf16)}
        lanes_per_s = SUBLANES * LANES * chip.figure("clock_hz") * cores
        return cls(
            flops_per_s={dtype: peak * share for dtype, peak in peaks.items()},
            mxu_side=chip.mxu_side or LANES,
            hbm_bytes_per_s=chip.figure("hbm_bytes_per_s") * share,
            vector_ops_per_s=lanes_per_s * vector_slots(chip) * share,
            stores_per_s=lanes_per_s * share,
            cores=1 if per_core else cores,
            float32_vectors=chip.name in cal.CHIPS_WITH_FLOAT32_VECTORS,
        )

    def matmul_s(self, m: int, k: int, n: int, dtype: str = "bf16") -> float:
        """Seconds of the matrix units for one product, operands in VMEM.

        >>> from torchtpu_core.hardware.registry import chips
        >>> rates = Rates.of(chips().get("v6e"))
        >>> round(2 * 8192**3 / rates.matmul_s(8192, 8192, 8192) / 1e12)
        826
        """
        return self.padded_flops(m, k, n) / (self.flops_per_s[dtype] * self.fill)

    def product_s(self, m: int, k: int, n: int, dtype: str, moved_bytes: float) -> float:
        """Seconds of a product by itself, operands and result in HBM.

        The matrix units wait for the first blocks, and the last ones leave after they have
        ended: of a small product that is all it moves.
        """
        alone = min(moved_bytes, cal.SCOPED_VMEM_BYTES.value * self.cores)
        rest_s = self.hbm_s(moved_bytes - alone)
        return self.hbm_s(alone) + max(self.matmul_s(m, k, n, dtype), rest_s)

    def fused_matmul_s(self, m: int, k: int, n: int, dtype: str = "bf16") -> float:
        """Seconds of a product with work fused into it: matrix or vector unit, the slower.

        Each pass over S rows of weights leaves a result that the vector unit stores. Types
        of eight bits pass twice as many rows at once.
        """
        drain = self._results(m, k, n, dtype) / self.stores_per_s
        return max(
            self.matmul_s(m, k, n, dtype), drain * (1 + cal.FUSED_VECTOR_OPS.value) / self.fill
        )

    def vector_product_s(self, m: int, k: int, n: int) -> float:
        """Seconds of the vector unit for one product, a multiplication and an addition at a time.

        XLA takes this way where tiles of the matrix unit would be nearly empty, as in a
        convolution of each feature by itself.
        """
        return 2.0 * m * k * n / self.vector_ops_per_s

    def _results(self, m: int, k: int, n: int, dtype: str) -> float:
        """Results that leave the matrix unit."""
        wider = self.flops_per_s[dtype] / self.flops_per_s["bf16"]
        return self.padded_flops(m, k, n) / (2.0 * self.mxu_side * wider)

    def padded_flops(self, m: int, k: int, n: int) -> float:
        """Operations of a product whose dimensions are rounded up to whole tiles."""
        side = self.mxu_side
        rows = ceil_div(max(m, 1), SUBLANES) * SUBLANES
        return 2.0 * rows * (ceil_div(k, side) * side) * (ceil_div(n, side) * side)

    @property
    def fill(self) -> float:
        """Part of the peak that a long product reaches: tiles of weights must be loaded."""
        return 1 / (1 + self.mxu_side / cal.MATRIX_FILL_ROWS.value)

    def attention_s(
        self,
        scores: float,
        head_dim: int,
        value_dim: int,
        *,
        backward: bool,
        fused: bool = True,
        passes: int = 1,
    ) -> float:
        """Seconds of attention over `scores` pairs of query and key, of all heads.

        Forward two products, backward five, each of so many passes over the matrix unit, of which
        it uses ``dim / S``. If the gradients of queries and those of keys and values have a kernel
        each (not `fused`), both compute the scores and their gradients: seven.
        """
        side = self.mxu_side
        pad_k = ceil_div(head_dim, side) * side
        pad_v = ceil_div(value_dim, side) * side
        products = pad_k + pad_v
        if backward:
            products += 2 * pad_k + pad_v if fused else 3 * pad_k + 2 * pad_v
        ops = cal.SOFTMAX_OPS_BACKWARD.value if backward else cal.SOFTMAX_OPS_FORWARD.value
        matrix = 2.0 * scores * products * passes / (self.flops_per_s["bf16"] * self.fill)
        return matrix + scores * ops / self.vector_ops_per_s

    def hbm_s(self, moved_bytes: float) -> float:
        """Seconds to read or write bytes in long transfers."""
        return moved_bytes / (self.hbm_bytes_per_s * cal.HBM_ACHIEVED.value)

    def elementwise_s(self, accesses: float, element_bytes: int) -> float:
        """Seconds of reads and writes of elements by work that is fused into products.

        What the vector unit does for them beside the matrix unit is hidden, but not that of
        converting each bfloat16 element where it computes in float32.
        """
        converted = self.float32_vectors and element_bytes < WORD_BYTES
        ops = accesses * cal.FLOAT32_VECTOR_OPS.value if converted else 0.0
        return self.hbm_s(accesses * element_bytes) + ops / self.vector_ops_per_s

    def vmem_s(self, moved_bytes: float) -> float:
        """Seconds of the vector unit to go through values in VMEM: as much is read as stored.

        A core stores one register of `SUBLANES` times `LANES` words in each cycle.
        """
        return moved_bytes / (2 * WORD_BYTES * self.stores_per_s)

    def copy_s(self, array_bytes: float) -> float:
        """Seconds to copy an array within HBM, from its start."""
        return cal.KERNEL_START_S.value + self.hbm_s(2 * array_bytes)
