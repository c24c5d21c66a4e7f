# SPDX-License-Identifier: Apache-2.0
"""The constants of the step model: each with its source, none per workload.

What is `measured` was read off one published microbenchmark; what is `assumed` was
chosen from the published training runs as a whole, and
`docs/reference/validation.md` shows how the errors change when a source is left out.
"""

from __future__ import annotations

from torchtpu_core.hardware.sourced import Sourced, Status
from torchtpu_core.units import MIB

MATRIX_FILL_ROWS = Sourced(
    2304.0,
    "rows that amortise loading one tile of weights: v6e reaches 827 of 918 TFLOP/s at "
    "8192^3 (tpu-recipes microbenchmarks), which is 1 / (1 + 256 / 2304)",
    Status.MEASURED,
)
HBM_ACHIEVED = Sourced(
    0.867,
    "tpu-recipes: copies of 0.5 to 4 GiB on a tpu7x core run at 3.2 of 3.69 TB/s",
    Status.MEASURED,
)
KERNEL_START_S = Sourced(
    1.5e-6,
    "tpu-recipes: the constant part of the time of copies of 2 to 67 MB on tpu7x",
    Status.MEASURED,
)
HOST_START_S = Sourced(
    100e-6,
    "tpu-recipes: a host-timed matrix product on v6e takes 1.458 ms, on the device 1.329 ms",
    Status.MEASURED,
)
COLLECTIVE_START_S = Sourced(
    5e-6,
    "of each phase: the scaling book's all-gather on one axis of v5e takes 5 us more than "
    "bandwidth and hops; tpu-recipes' all-gathers of 0.25 to 64 MiB on two axes of tpu7x 11 us",
    Status.MEASURED,
)
SCOPED_VMEM_BYTES = Sourced(
    16 * MIB,
    "libtpu's default limit for the blocks of one operation: the first are loaded before a "
    "product begins, the last are stored after it",
    Status.MEASURED,
)
V6E_SCOPED_VMEM_BYTES = Sourced(
    32 * MIB,
    "the same on v6e: of float32 scores of attention, 90 MiB stay in its VMEM of 128 MiB between "
    "operations, and 96 MiB do not; on v5e 108 MiB stay, and 120 do not",
    Status.MEASURED,
)
TABLE_BYTES = Sourced(
    16 * 1024,
    "distance in HBM between the tables of addresses that libtpu makes for each asynchronous copy "
    "and each fusion of several results",
    Status.MEASURED,
)
TABLES_PER_STATE = Sourced(
    2.0,
    "such tables for each tensor that a step changes, which is copied to VMEM and back: least "
    "squares over 66 programs of libtpu for v5e, with a median deviation of 16 % together with the "
    "next two (2.0, 7.5, 4.75)",
    Status.MEASURED,
)
TABLES_PER_PARTED_STATE = Sourced(
    7.5, "such tables for one which is copied in parts, each with two tables", Status.MEASURED
)
TABLES_PER_PARTED_VALUE = Sourced(
    4.75, "such tables for each other value in HBM of a size to be copied in parts", Status.MEASURED
)
PARTED_BYTES = Sourced(
    2**20, "the least value that libtpu copies in parts (four) in those programs", Status.MEASURED
)
MOST_PARTED_BYTES = Sourced(
    48 * 2**20, "larger ones are seldom copied to VMEM before their use there", Status.MEASURED
)
#: Chips whose programs have such tables: the older TensorCores.
CHIPS_WITH_TABLES = frozenset({"v2", "v3", "v4", "v5e"})
#: Chips for which libtpu writes what an error function makes of a product of bfloat16, rather than
#: compute it for each of two products: BERT or ViT compiled for each; not for v3 and v5e.
CHIPS_THAT_KEEP_GELUS = frozenset({"v4", "v5p", "v6e", "tpu7x"})
MULTISLICE_LOSS = Sourced(
    0.02,
    "time lost to waiting for the slowest slice, per doubling of their number: MaxText v5e "
    "tables from 1 to 32 slices",
    Status.ASSUMED,
)
VECTOR_SLOTS = Sourced(
    4,
    "operations on registers in one cycle of chips whose record has none: as the compiler's "
    "bundles for v5e to tpu7x hold; those for v2 to v4 hold two",
    Status.ASSUMED,
)
FLOAT32_VECTOR_OPS = Sourced(
    4.0,
    "vector operations that matrix work does not hide, for each bfloat16 element that a norm, a "
    "rotation, an activation or their gradients read or write, where the vector unit has float32 "
    "only: cycles that the products of a layer of width 2048 take beyond plain ones in libtpu "
    "0.0.42.1's schedules are 3.9 on v5e, 5.7 on v5p, 7.9 on v4; the least of them",
    Status.MEASURED,
)
#: Chips whose vector units convert bfloat16 to float32 and back.
CHIPS_WITH_FLOAT32_VECTORS = frozenset({"v2", "v3", "v4", "v5e", "v5p"})
SOFTMAX_OPS_FORWARD = Sourced(
    2.5, "vector operations per score that matrix work does not hide, forward", Status.ASSUMED
)
SOFTMAX_OPS_BACKWARD = Sourced(
    4.5,
    "the same, backward; both from the 131,072-token Llama 3.1 70B run on tpu7x",
    Status.ASSUMED,
)
RANDOM_OPS = Sourced(
    78,
    "vector operations for each random number and what a dropout does with it, counted in the "
    "fusions that libtpu 0.0.42.1 makes of `lowering/rng.py`",
    Status.MEASURED,
)
SCORE_BYTES_FORWARD = Sourced(
    20,
    "bytes of HBM for each score of attention without a flash kernel, in published programs, whose "
    "gradient is that of automatic differentiation; counted, not fitted: XLA's "
    "products and reductions do not fuse with one another. float32 scores are written, and "
    "read for the greatest, the sum and the quotient; bf16 probabilities are written and read",
    Status.ASSUMED,
)
SCORE_BYTES_BACKWARD = Sourced(
    24,
    "the same, backward: bf16 probabilities are read for the values' gradient; theirs is "
    "written, and both are read for the sum and for the difference; float32 gradients of the "
    "scores are written and read for queries and keys",
    Status.ASSUMED,
)
SCORE_ACCESSES = Sourced(
    3,
    "times that each score of our attention without a flash kernel moves in float32, forward and "
    "backward, and its gradient in the operands' type; counted, not fitted, in libtpu's programs "
    "of 24 to 192 MiB of scores: the product that writes them has their maxima, and they are read "
    "for the sums, and in another product as quotients; backward they are computed again, and "
    "read for the values' gradient and for theirs, which the queries' and the keys' gradients read",
    Status.MEASURED,
)
ATTENTION_BLOCK = Sourced(
    1024, "MaxText recipes set blocks of 1024 to 2048 queries and keys", Status.ASSUMED
)
ICI_HIDDEN = Sourced(
    0.35,
    "part of the collectives that runs behind compute, if there is enough of it: all published "
    "training runs together",
    Status.ASSUMED,
)
FUSED_VECTOR_OPS = Sourced(
    0.23,
    "vector stores per result of the matrix unit that fused work adds to the one that takes the "
    "result out: training runs on v6e and tpu7x, where that one fills the slot",
    Status.ASSUMED,
)
GROUPED_MATMUL = Sourced(
    0.55,
    "rate of the experts' products over that of a dense one, where groups are long",
    Status.ASSUMED,
)
GROUP_TILE_ROWS = Sourced(
    512,
    "MaxText's tiles of grouped products; an expert's tokens begin and end within a tile, so "
    "that one more is computed for each",
    Status.DATASHEET,
)
EXPERT_ROUTING_PASSES = Sourced(
    50.0,
    "reads and writes of each routed token in a step, at HBM's rate for long transfers: sort, "
    "gather, scatter and combine of single rows run far below it",
    Status.ASSUMED,
)
