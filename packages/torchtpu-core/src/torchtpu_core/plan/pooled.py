# SPDX-License-Identifier: Apache-2.0
"""Images that a step pools, as XLA's TPU compiler keeps them.

A max pool computes elementwise work on its image within it; its gradient, which looks for the
largest pixels once more, does not. XLA writes the image for it just before, from what the pool's
own was made of, to VMEM where it fits. Averages of windows are written, and so are their gradients
where windows overlap; where they lie side by side, each gradient is repeated for those who read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torchtpu_core.plan.records import Op
from torchtpu_core.plan.vmem import Life

_POOL = ("max_pool2d_with_indices", "max_pool3d_with_indices")
_AVERAGES = frozenset({"avg_pool2d", "avg_pool3d"})
_GRADIENTS = frozenset({"avg_pool2d_backward", "avg_pool3d_backward"})
#: The image among the operands of a max pool's gradient.
_IMAGE = 1


def is_max_pool(op: Op) -> bool:
    """Whether an operator is a max pool or the gradient of one."""
    return op.name.startswith(_POOL)


def sums_windows(op: Op) -> bool:
    """Whether an operator's results are sums over windows, which are not computed again."""
    if op.name in _AVERAGES:
        return True
    return op.name in _GRADIENTS and op.read_bytes[0] == op.write_bytes[0]


def lives_of_pooled_images(
    ops: Sequence[Op],
    sources: Mapping[int, frozenset[int]],
    size_of: Callable[[int], int],
    room_bytes: int,
) -> list[Life]:
    """Such images, as they are written for the gradients to HBM.

    Args:
        ops: the operators of a step.
        sources: what is read instead of what is computed again (`plan.recomputed`).
        size_of: bytes of a storage.
        room_bytes: of VMEM.
    """
    lives = []
    for index, op in enumerate(ops):
        if is_max_pool(op) and op.name.endswith("backward"):
            image = op.reads[_IMAGE]
            if image in sources and size_of(image) > room_bytes:
                lives.append(Life(image, size_of(image), (index,), index + 1))
    return lives
