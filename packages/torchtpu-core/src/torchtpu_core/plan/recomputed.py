# SPDX-License-Identifier: Apache-2.0
"""Which results of elementwise work XLA computes again where they are read.

XLA fuses elementwise work into those who read it, products and convolutions included, and
does so once for each reader where that moves fewer bytes than to write the result and read it:
a ReLU of one operand is never kept, a sum of two that many read is. Random bits are made of nothing
that is read, so a dropout's mask is drawn again if its gradient draws; other random numbers are
drawn once, but for products that alone read them. An image that is converted for convolutions is
kept in the order that these want. A softmax is computed once, and so is a norm over features before
a product, whose operand it would be; one that is moved for the product, too, unless the product is
of float32, whose operands are split anew. A softmax that dropout scales is written for its product.
Heads or chunks that do not fill lanes are kept as they are moved for batched products.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from torchtpu_core.lowering.layout import NEARLY_ALL
from torchtpu_core.plan.fusible import (
    COPIES,
    COSTLY,
    SMALL,
    is_elementwise,
    passes,
    reduces,
    takes_fused,
)
from torchtpu_core.plan.gathers import within_sums
from torchtpu_core.plan.norms import NORMS
from torchtpu_core.plan.pooled import is_max_pool, sums_windows
from torchtpu_core.plan.products import (
    feeds_product,
    is_convolution,
    is_product,
    moves_out_of_tiles,
    multiplies_narrow,
)
from torchtpu_core.plan.records import Block, Op, Work
from torchtpu_core.plan.uses import Uses
from torchtpu_core.plan.written import SHUFFLES, Written

_SOFTMAX = frozenset({"_softmax", "_safe_softmax"})
_PADS = frozenset({"slice_backward", "constant_pad_nd"})
_REPEATS = ("upsample_", "_upsample_")
#: Operators further apart than this are not fused, but for what is computed again.
WINDOW = 24
#: Operands of one fusion: the most that libtpu gave the sum of an LSTM's gradients.
MOST_OPERANDS = 48
#: Readers for each of which a result is computed again: for the 256 steps of a scan it was written.
MOST_READERS = 64


def sources_of(
    ops: Sequence[Op],
    uses: Uses,
    size_of: Callable[[int], float],
    written: Written,
) -> dict[int, frozenset[int]]:
    """What is read instead, by storage that is computed again.

    Args:
        ops: the operators of a step.
        uses: of its storages.
        size_of: bytes of a storage.
        written: what is written for its readers.
    """
    found: dict[int, frozenset[int]] = {}
    dropped = _dropped_softmaxes(ops)
    repeated: dict[int, list[int]] = defaultdict(list)
    for storage, first in uses.repeats.items():
        repeated[first] += uses.readers[storage]
    random: set[int] = set()
    # In the order of their last writers, so that what these read has been looked at.
    for storage in sorted(uses.passing, key=lambda one: uses.writers[one][-1]):
        writers = uses.writers[storage]
        readers = [index for index in uses.readers[storage] if index not in writers]
        op = ops[writers[-1]]
        if storage in uses.repeats:
            first = uses.repeats[storage]
            found[storage] = found.get(first, frozenset({first}))
            continue
        readers += repeated.get(storage, [])
        if not 0 < len(readers) <= MOST_READERS or storage in written.convolved:
            continue
        if len(writers) > 1 and not _is_chain(ops, storage, writers, readers):
            continue
        gathered = within_sums(op, [ops[i] for i in readers], size_of)
        if not gathered and not _fuses(ops, op, readers):
            continue
        if _is_mask(op, storage) and not all(ops[i].drawn for i in readers):
            continue
        reads = {read for index in writers for read in _read_for(ops[index], storage)} - {storage}
        sources = frozenset(s for read in reads for s in found.get(read, {read}))
        if len(sources) > MOST_OPERANDS:
            continue
        if any(_joins_for_products(ops, uses, i) for i in readers):
            continue
        norm = (op.name in NORMS, storage in written.scaled)
        if _is_norm_for(
            [ops[i] for i in readers], *norm, storage in written.normed, storage in written.rows
        ):
            continue
        if _written_for_product(ops, uses, op, readers) or _costs_passes(ops, op, readers):
            continue
        if _holds_softmax(
            ops, storage, readers, [*map(size_of, sources), written.ends.get(storage, 0)], size_of
        ):
            continue
        if op.name == "_log_softmax" and _gradient_in_part(ops, uses, readers):
            continue
        if op.name == "clone" and any(multiplies_narrow(ops[i]) for i in readers):
            continue
        folded = op.name == "constant_pad_nd" and all(is_convolution(ops[i]) for i in readers)
        converted = uses.fixed.issuperset(sources)
        if converted and len(readers) > 1 and all(_convolves(ops[i], storage) for i in readers):
            continue
        beside = storage in dropped or storage in written.reordered or storage in written.gradients
        moved = moves_out_of_tiles(ops, uses, op, sources, size_of(storage), size_of)
        if (beside or moved) and feeds_product(ops, readers):
            continue
        draws = _draws(op) or not random.isdisjoint(reads)
        if draws and len(readers) > 1 and not all(is_product(ops[i]) for i in readers):
            continue
        if len(writers) == 1 and (product := _summed_product(ops, uses, found, op)) is not None:
            kept = size_of(storage) * (1 + len(readers))
            if size_of(product) + len(readers) * sum(map(size_of, sources)) > kept:
                continue
        if folded or _pays(ops, storage, writers[-1], readers, sources, size_of):
            found[storage] = sources
            random.update({storage} if draws else ())
    return found


def _is_norm_for(
    readers: Sequence[Op], native: bool, scaled: bool, lies_otherwise: bool, in_rows: bool
) -> bool:
    """Whether a norm, or what is made of one, is written for products that read it."""
    products = [one for one in readers if is_product(one)]
    rounded = [one.dtype == "bf16" for one in products]
    if lies_otherwise and any(rounded):
        return True
    if in_rows and all(rounded):
        return False
    return (scaled and bool(products)) or (
        native and any(one.work is Work.MATMUL for one in readers)
    )


def _summed_product(
    ops: Sequence[Op], uses: Uses, found: Mapping[int, frozenset[int]], op: Op
) -> int | None:
    """The product at whose end a sum is made, if that is all that reads it.

    XLA writes the sum of a residual stream there, and not the product.
    """
    for made in op.reads if op.name == "add" and len(op.reads) > 1 else ():
        while made in found and len(uses.readers[made]) == 1:
            before = ops[uses.writers[made][-1]]
            if not is_elementwise(before) or reduces(before) or before.reads[:1] in ((), (made,)):
                break
            made = before.reads[0]
        if made in found or made in uses.fixed or len(uses.readers.get(made, ())) != 1:
            continue
        if made in uses.writers and is_product(ops[uses.writers[made][-1]]):
            return made
    return None


def ends_of_products(
    ops: Sequence[Op], blocks: dict[int, Block], uses: Uses, sources: dict[int, frozenset[int]]
) -> dict[int, int]:
    """Elementwise results made of a product that nobody else reads, and the product.

    XLA applies such work to the product's sums before it writes them, and reads the other operands
    there.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
        uses: of its storages.
        sources: as `sources_of` finds them.
    """
    found: dict[int, int] = {}
    for index, op in enumerate(ops):
        for storage in op.writes if takes_fused(op) else ():
            made = storage
            for reader in uses.readers_alone(ops, storage):
                if not is_elementwise(reader) or reduces(reader) or reader.name in SHUFFLES:
                    break
                count = math.prod(blocks[made].shape)
                made = reader.writes[0]
                if math.prod(blocks[made].shape) != count:
                    break
                if made not in sources or storage not in sources[made]:
                    break
                found[made] = index
    return found


def _read_for(op: Op, storage: int) -> tuple[int, ...]:
    """What an operator reads for one of its results: for the mask of a dropout, nothing."""
    return () if _is_mask(op, storage) else op.reads


def _holds_softmax(
    ops: Sequence[Op],
    storage: int,
    readers: Sequence[int],
    sizes: Sequence[float],
    size_of: Callable[[int], float],
) -> bool:
    """Whether a softmax is computed from a result wherever it is read.

    It is, with the statistics of its rows, if what that is made of is no smaller: scores as they
    are scaled and masked. Logits of 16 bits that are converted stay as they are.
    """
    if not any(ops[i].name in _SOFTMAX for i in readers):
        return False
    return size_of(storage) <= sum(sizes)


def _gradient_in_part(ops: Sequence[Op], uses: Uses, readers: Sequence[int]) -> bool:
    """Whether a part of a softmax's gradient is all that is read, as by one rank of several.

    XLA takes the part of the log-probabilities, then, which are written for it.
    """
    made = [s for i in readers if ops[i].name.endswith("backward_data") for s in ops[i].writes]
    for storage in made:
        for op in itertools.takewhile(is_elementwise, uses.readers_alone(ops, storage)):
            whole = ops[uses.writers[storage][-1]].write_bytes[0]
            if 2 * sum(op.read_bytes) <= whole:
                return True
            storage = op.writes[0]
    return False


def _draws(op: Op) -> bool:
    """Whether all that an operator makes is random numbers."""
    return op.drawn > 0 and len(op.writes) == 1


def _is_mask(op: Op, storage: int) -> bool:
    return op.drawn > 0 and storage in op.writes[1:]


def _is_chain(
    ops: Sequence[Op], storage: int, writers: Sequence[int], readers: Sequence[int]
) -> bool:
    """Whether a value is only changed in place before it is read: to XLA, value after value."""
    written = {ops[i].write_bytes[ops[i].writes.index(storage)] for i in writers}
    fused = all(is_elementwise(ops[i]) for i in writers)
    return readers[0] > writers[-1] and fused and len(written) == 1


def _joins_for_products(ops: Sequence[Op], uses: Uses, index: int) -> bool:
    """Whether an operator joins tensors for a product, which reads them in their parts."""
    joined = ops[index].writes if ops[index].name == "cat" else ()
    return any(ops[i].work is Work.MATMUL for storage in joined for i in uses.readers[storage])


def _written_for_product(ops: Sequence[Op], uses: Uses, op: Op, readers: Sequence[int]) -> bool:
    """Whether a product reads a result that it does not compute within it.

    It neither pads its operand, as the gradient of a slice is, nor repeats rows of an image.
    What is padded is written before.
    """
    if any(takes_fused(ops[i]) for i in readers) and _repeats(ops, uses, op):
        return True
    if _pads(ops, uses, op) and feeds_product(ops, readers):
        return True
    padded = (storage for i in readers if _pads(ops, uses, ops[i]) for storage in ops[i].writes)
    return any(feeds_product(ops, uses.readers[storage]) for storage in padded)


def _repeats(ops: Sequence[Op], uses: Uses, op: Op) -> bool:
    """Whether an operator interpolates an image, or copies or joins one that is interpolated."""
    if op.name not in COPIES:
        return op.name.startswith(_REPEATS)
    made = (uses.writers.get(storage, []) for storage in op.reads)
    return any(
        len(by) == 1 and ops[by[0]] is not op and _repeats(ops, uses, ops[by[0]]) for by in made
    )


def _pads(ops: Sequence[Op], uses: Uses, op: Op) -> bool:
    """Whether an operator pads an operand.

    The gradient of logits of which nearly all rows are left is computed of all rows
    (`lowering.cut_rows`).
    """
    if op.name not in _PADS:
        return False
    made, index = op, len(ops)
    while len(made.reads) == 1 and (writers := uses.writers.get(made.reads[0])):
        if writers[-1] >= index:  # it is changed in place
            break
        index = writers[-1]
        made = ops[index]
        if made.name not in COPIES:
            break
    cut = made.name.endswith("softmax_backward_data") and op.name == "slice_backward"
    return not cut or op.read_bytes[0] < NEARLY_ALL * op.write_bytes[0]


def _dropped_softmaxes(ops: Sequence[Op]) -> set[int]:
    """Softmaxes after dropout, and what they are cast to: XLA writes them for a product."""
    softmaxes: set[int] = set()
    found: set[int] = set()
    for op in ops:
        if op.name in _SOFTMAX:
            softmaxes.update(op.writes)
        elif op.drawn and not softmaxes.isdisjoint(op.reads):
            found.update(op.writes[:1])
        elif op.name in COPIES and op.reads and found.issuperset(op.reads):
            found.update(op.writes)
    return found


def _convolves(op: Op, storage: int) -> bool:
    """Whether a storage is the image that a convolution, or its gradient, reads."""
    place = 1 if op.name.endswith("backward") else 0
    return is_convolution(op) and op.reads[place : place + 1] == (storage,)


def _fuses(ops: Sequence[Op], op: Op, readers: Sequence[int]) -> bool:
    """Whether an operator can be part of each of those who read it."""
    if not is_elementwise(op) or sums_windows(op):
        return False
    return all(
        is_elementwise(ops[i]) or takes_fused(ops[i]) or is_max_pool(ops[i]) for i in readers
    )


def _costs_passes(ops: Sequence[Op], op: Op, readers: Sequence[int]) -> bool:
    """Whether costly work would be done for each of a norm's passes."""
    return op.name in COSTLY and any(passes(ops[i]) > 1 for i in readers)


def _pays(
    ops: Sequence[Op],
    storage: int,
    index: int,
    readers: Sequence[int],
    sources: frozenset[int],
    size_of: Callable[[int], float],
) -> bool:
    """Whether computing a result for each reader moves fewer bytes than to keep it."""
    size = size_of(storage)
    count = sum(passes(ops[i]) for i in readers)
    read = sum(size_of(source) for source in sources if size_of(source) >= SMALL * size)
    near = readers[-1] - index <= WINDOW
    # What is made of far more than it is, as the norm of all gradients is, is made once.
    once = SMALL * read <= size and all(
        ops[i].work is Work.ELEMENTWISE and passes(ops[i]) == 1 for i in readers
    )
    if near and (len(readers) == 1 or once):
        return True
    return count * read < read + size + count * size
