# SPDX-License-Identifier: Apache-2.0
"""The exceptions of collectives.

Each is a ``torch.distributed.DistBackendError``, which training loops already catch,
and a `TorchTPUError`. A message names the rank, the collective with its number in its
group, and the user's line.
"""

from __future__ import annotations

from torch.distributed import DistBackendError
from torchtpu_core.errors import TorchTPUError


class CollectiveError(TorchTPUError, DistBackendError):  # type: ignore[misc]
    """A collective that cannot finish, or could not be started.

    Fix: see the message. The process group cannot be used any more; restart the job.
    """


class PeerLostError(CollectiveError):
    """A rank ended, or stopped answering, while others wait for it in a collective.

    Fix: look at that rank's own output for the cause.
    """


class CollectiveTimeoutError(CollectiveError):
    """A rank did not come to a collective in time.

    Fix: see what that rank was doing; raise ``timeout=`` of init_process_group or
    TORCH_TPU_COLLECTIVE_TIMEOUT_S if it only needed longer.
    """


class CollectiveMismatchError(CollectiveError):
    """Ranks called different collectives at the same place of their order.

    Fix: make every rank of the group call the same collectives in the same order, with
    the same shapes, dtypes and reduction.
    """


class ProcessGroupError(TorchTPUError, ValueError):
    """A process group that cannot be made, or an argument it does not take."""


def in_words(error: BaseException) -> str:
    """Class and text of an exception, as a traceback ends, for a sentence that goes on after it."""
    return f"{type(error).__name__}: {error}".removesuffix(": ").removesuffix(".")
