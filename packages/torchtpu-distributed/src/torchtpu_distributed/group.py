# SPDX-License-Identifier: Apache-2.0
"""A process group: its ranks, its order of collectives, and the mesh they run on.

Which device a rank uses is known only when it brings its first tensor, so the mesh is
made at the first collective, from what each rank writes into the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import jax
import numpy as np
from torch import distributed as dist

from torchtpu_distributed.board import Board
from torchtpu_distributed.errors import CollectiveMismatchError, ProcessGroupError
from torchtpu_distributed.first_calls import FirstCalls
from torchtpu_distributed.ledger import Failure
from torchtpu_distributed.pending import Operand, Pending
from torchtpu_distributed.stacks import main_line
from torchtpu_distributed.world import World

AXIS = "ranks"
#: Pauses between two looks at a key that is not there yet.
_FIRST_NAP_S, _NAP_S = 0.0001, 0.02
#: How long the watch may need to say who is behind a lost store.
_VERDICT_S = 10.0


class Group:
    """A process group of a world.

    Args:
        world: the world it belongs to.
        name: its name, the same on all ranks.
        ranks: its global ranks, in group order.
        timeout_s: seconds a collective may take.
        is_world: whether it is the default group.
    """

    def __init__(
        self,
        world: World,
        name: str,
        ranks: tuple[int, ...],
        timeout_s: float,
        *,
        is_world: bool = False,
    ) -> None:
        self.world = world
        self.name = name
        self.ranks = ranks
        self.timeout_s = timeout_s
        self.is_world = is_world
        self.seq = 0
        self.messages = 0
        self._store = dist.PrefixStore(f"group/{name}", world.store)
        self._device: int | None = None
        world.ledger.recorder.know(self)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @cached_property
    def rank(self) -> int:
        """This process's number in the group."""
        return self.ranks.index(self.world.rank)

    @property
    def description(self) -> str:
        """What the group is for, as PyTorch words it."""
        return "default_pg" if self.is_world else "undefined"

    def pending(
        self,
        what: str,
        line: str,
        *,
        kind: str,
        inputs: Sequence[Operand] = (),
        outputs: Sequence[Operand] = (),
    ) -> Pending:
        """The next collective of the group, entered into the ledger."""
        self.seq += 1
        pending = Pending(
            group=self.name,
            ranks=self.ranks,
            seq=self.seq,
            what=what,
            line=line or main_line(),
            timeout_s=self.timeout_s,
            kind=kind,
            inputs=inputs,
            outputs=outputs,
        )
        self.world.ledger.begin(pending)
        return pending

    def agree(self, pending: Pending) -> None:
        """Make sure the group's first rank calls the same collective here.

        No transport notices every difference: ranks would get wrong values, hang or
        crash. The first rank writes what it calls before it launches; the others
        compare before they do, so a mismatched collective never starts.

        Raises:
            CollectiveMismatchError: it calls another.
        """
        if self.size == 1:
            return
        other = self._first_calls.compare(pending.seq, pending.what, pending.line)
        self.world.ledger.check()
        if other is not None:
            self._refuse(pending, *other)

    @cached_property
    def _first_calls(self) -> FirstCalls:
        hosts = {self.world.peers[rank].host for rank in self.ranks}
        return FirstCalls(
            self._store,
            self.rank,
            self.size,
            nearby=len(hosts) == 1 and "" not in hosts,
            abort=self.world.ledger.abort,
            read=self.read,
            forget=lambda key: self.world.watch.forget(f"group/{self.name}/{key}"),
        )

    def read(self, key: str) -> str:
        """A key of the group's store, waiting for it as long as the job has not failed.

        It asks again and again: a blocking read would not see that a rank is lost, and
        would keep the connection from other threads.
        """
        ledger, nap_s = self.world.ledger, _FIRST_NAP_S
        try:
            while not self._store.check([key]):
                ledger.wait_until(lambda: False, nap_s)
                nap_s = min(1.5 * nap_s, _NAP_S)
            return self._store.get(key).decode()
        except dist.DistNetworkError:
            ledger.wait_until(lambda: False, _VERDICT_S)
            raise

    def _refuse(self, pending: Pending, what: str, line: str) -> None:
        calls = {self.ranks[0]: f"{what}{f' at {line}' if line else ''}"}
        calls[self.world.rank] = f"{pending.what}{f' at {pending.line}' if pending.line else ''}"
        board = Board(self.world.store, self.world.rank)
        for rank in self.ranks:
            number, name = board.position(rank, self.name)
            if rank not in calls:
                calls[rank] = name if number == pending.seq else f"(at number {number}) {name}"
        listed = "".join(f"\n  rank {rank}: {calls[rank]}" for rank in sorted(calls))
        message = (
            f"Collective number {pending.seq} of group {self.name!r} differs between ranks; rank "
            f"{self.world.rank} noticed it before it began:{listed}\nAll ranks of a group must "
            "call the same collectives in the same order, with the same shapes, dtypes and "
            "reduction. The first line that should not be there, or is missing, is the cause."
        )
        board.post("mismatch", ranks=list(self.ranks), message=message)
        self.world.ledger.fail(Failure(CollectiveMismatchError, message))
        self.world.ledger.check()

    def use_device(self, device: int) -> None:
        """Settle which device this rank brings to the group; the first use decides.

        Raises:
            ProcessGroupError: this rank used another device before.
        """
        if self._device is None:
            self._device = device
        if device != self._device:
            raise ProcessGroupError(
                f"this rank's tensors of group {self.name!r} were on tpu:{self._device} before, "
                f"and one is on tpu:{device} now. A rank uses one device in a process group: call "
                "torch.tpu.set_device(LOCAL_RANK) before making tensors."
            )

    @cached_property
    def sharding(self) -> jax.sharding.NamedSharding:
        """How a collective's arrays lie: one piece on the device of each rank."""
        assert self._device is not None
        client = self.world.joined.client
        mine = client.local_devices()[self._device]
        self._store.set(f"device/{self.rank}", str(mine.id))
        ids = [int(self.read(f"device/{rank}")) for rank in range(self.size)]
        by_id = {device.id: device for device in client.devices()}
        missing = [self.ranks[i] for i, number in enumerate(ids) if number not in by_id]
        if missing or len(set(ids)) < len(ids):
            raise ProcessGroupError(
                f"the runtime does not connect this rank to the devices of rank(s) "
                f"{missing or list(self.ranks)} in group {self.name!r}. Every rank needs a device "
                "of its own, and on real TPUs the runtime must span all hosts of the slice."
            )
        mesh = jax.sharding.Mesh(np.array([by_id[number] for number in ids]), (AXIS,))
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(AXIS))
