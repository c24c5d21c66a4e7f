# SPDX-License-Identifier: Apache-2.0
"""The one process group world of this process, if there is one.

A module of its own so that the plugin's hooks, which core calls all the time, load
nothing and look at one variable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtpu_distributed.world import World

#: Set from init_process_group to destroy_process_group.
world: World | None = None

#: Set while a world is being made: number of local devices to a PJRT client.
make_client: Callable[[int], Any] | None = None


def flight_recorder() -> dict[str, Any]:
    """The last collectives of this process, in the layout of PyTorch's flight recorder.

    It can be called at any time, from any thread, also while a collective hangs.

    Raises:
        RuntimeError: there is no process group of tpu tensors.
    """
    if world is None:
        raise RuntimeError(
            "there is no flight recorder: call torch.distributed.init_process_group() first."
        )
    return world.ledger.recorder.snapshot()
