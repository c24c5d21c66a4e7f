# SPDX-License-Identifier: Apache-2.0
"""A process group: its ranks, its order of collectives, and the mesh they run on.

Which device a rank uses is known only when it brings its first tensor, so the mesh is
made at the first collective, from what each rank writes into the store.
"""

from __future__ import annotations

import threading
from functools import cached_property

import jax
import numpy as np
from torch import distributed as dist

from torchtpu_distributed import _C, differences
from torchtpu_distributed.board import Board
from torchtpu_distributed.errors import CollectiveMismatchError, ProcessGroupError
from torchtpu_distributed.first_calls import Difference, FirstCalls, Pieces
from torchtpu_distributed.ledger import Failure
from torchtpu_distributed.pending import Pending
from torchtpu_distributed.stacks import stand_in_line
from torchtpu_distributed.world import World

AXIS = "ranks"
#: Pauses between two looks at a key that is not there yet.
_FIRST_NAP_S, _NAP_S = 0.0001, 0.02


class Group:
    """A process group of a world.

    Args:
        world: the world it belongs to.
        name: its name, the same on all ranks.
        ranks: its global ranks, in group order.
        timeout_s: seconds a collective may take.
        is_world: whether it is the default group.
        rings: how many calls, and how many messages, of a rank the memory holds in which ranks
            of one machine compare.

    Attributes:
        state: what compiled code knows of it; as a context manager it holds the order of
            the group's collectives.
    """

    def __init__(
        self,
        world: World,
        name: str,
        ranks: tuple[int, ...],
        timeout_s: float,
        *,
        is_world: bool = False,
        rings: tuple[int, int] = (_C.Mailbox.ENTRIES, 0),
    ) -> None:
        self.world = world
        self.name = name
        self.ranks = ranks
        self.is_world = is_world
        self._rings = rings
        self.state = _C.GroupState(name, ranks, timeout_s)
        self._store = world.store.prefixed(f"group/{name}")
        # Not functools.cached_property: until Python 3.12 its lock is that of all groups, and
        # ranks may come to their groups in different orders.
        self._making = threading.RLock()
        self._calls: FirstCalls | None = None
        self._sharding: jax.sharding.NamedSharding | None = None
        world.ledger.recorder.know(self)
        world.ledger.groups[name] = self

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @property
    def seq(self) -> int:
        """Number of collectives so far."""
        return self.state.seq

    @property
    def timeout_s(self) -> float:
        """Seconds a collective may take."""
        return self.state.timeout_s

    @timeout_s.setter
    def timeout_s(self, seconds: float) -> None:
        """Set it for collectives that begin from now on."""
        self.state.timeout_s = seconds

    @cached_property
    def rank(self) -> int:
        """This process's number in the group."""
        return self.ranks.index(self.world.rank)

    @cached_property
    def is_nearby(self) -> bool:
        """Whether all its ranks are on this machine."""
        hosts = {self.world.peers[rank].host for rank in self.ranks}
        return len(hosts) == 1 and "" not in hosts

    @property
    def description(self) -> str:
        """What the group is for, as PyTorch words it."""
        return "default_pg" if self.is_world else "undefined"

    def pending(self, call: _C.Call, line: str, timeout_s: float | None = None) -> Pending:
        """The next collective of the group, entered into the ledger.

        Args:
            call: what this rank calls.
            line: the user's line, if it is known.
            timeout_s: seconds it may take; None for the group's.
        """
        pending = self._next(call, line, timeout_s)
        self.world.ledger.begin(pending)
        return pending

    def come(self, call: _C.Call, line: str, timeout_s: float | None) -> Pending:
        """The same of one that nobody waits for yet."""
        pending = self._next(call, line, timeout_s)
        self.world.ledger.records.come(pending)
        return pending

    def take_back(self, pending: Pending) -> None:
        """Forget the last one, which cannot be called."""
        if self._calls is not None and self._calls.mailbox is not None:
            self._calls.mailbox.take_back(pending.seq)
        self.state.take_back(pending.seq)

    def _next(self, call: _C.Call, line: str, timeout_s: float | None) -> Pending:
        self.world.ledger.check()
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        return Pending.of(self.state, call, self.state.next(), line or stand_in_line(), limit_s)

    def agree(
        self, pending: Pending, pieces: Pieces | None = None, *, patient: bool = True
    ) -> None:
        """Make sure no other rank is known to call another collective here.

        No transport notices every difference: ranks would get wrong values, hang or
        crash. Every rank says what it calls before it launches, and looks at what others
        have said: of two that differ at least one never starts.

        Args:
            pending: what this rank calls.
            pieces: what it exchanges with each rank, if only two ranks know each size.
            patient: whether to wait for ranks that are far behind, or else not to compare.

        Raises:
            CollectiveMismatchError: it calls another.
        """
        if self.size == 1:
            return
        with self.world.ledger.verdict_on(dist.DistNetworkError):
            other = self._first_calls().compare(
                pending.seq, pending.call, pending.line, pieces, patient=patient
            )
        self.world.ledger.check()
        if other is not None:
            self.refuse(pending, other)

    def _first_calls(self) -> FirstCalls:
        """Made when it is first asked for, with the others: that blocks no other group."""
        with self._making:
            if self._calls is None:
                self._calls = self._make_first_calls()
            return self._calls

    def _make_first_calls(self) -> FirstCalls:
        return FirstCalls(
            self._store,
            self.rank,
            self.size,
            nearby=self.is_nearby,
            abort=self.world.ledger.abort,
            read=self.read,
            forget=lambda key: self.world.watch.forget(f"group/{self.name}/{key}"),
            rings=self._rings,
        )

    def read(self, key: str) -> str:
        """A key of the group's store, waiting for it as long as the job has not failed.

        It asks again and again: a blocking read would not see that a rank is lost, and
        would keep the connection from other threads.
        """
        ledger, nap_s = self.world.ledger, _FIRST_NAP_S
        with ledger.verdict_on(dist.DistNetworkError):
            while not self._store.check([key]):
                ledger.wait_until(lambda: False, nap_s)
                nap_s = min(1.5 * nap_s, _NAP_S)
            return self._store.get(key).decode()

    @property
    def mailbox(self) -> _C.Mailbox | None:
        """The memory in which the ranks compare; None if there is one, or several machines."""
        return self._first_calls().mailbox if self.size > 1 else None

    def share_memory(self) -> _C.Mailbox | None:
        """The same; of several machines, without asking the others."""
        return self.mailbox if self.is_nearby else None

    @property
    def known_calls(self) -> FirstCalls | None:
        """What ranks have said they call, if they have begun to."""
        return self._calls

    def refuse(self, pending: Pending, found: Difference) -> None:
        """Fail because another rank calls something else.

        Args:
            pending: what this rank calls.
            found: what the other one does.

        Raises:
            CollectiveMismatchError: always.
        """
        self.fail(differences.report(self, pending, found))

    def fail(self, message: str) -> None:
        """End the job of the group's ranks, because of a difference between them.

        Raises:
            CollectiveMismatchError: always.
        """
        board = Board(self.world.store, self.world.rank)
        board.post("mismatch", ranks=list(self.ranks), message=message)
        self.world.ledger.fail(Failure(CollectiveMismatchError, message))
        self.world.ledger.check()

    def use_device(self, device: int) -> None:
        """Settle which device this rank brings to the group; the first use decides.

        Raises:
            ProcessGroupError: this rank used another device before.
        """
        if self.state.device < 0:
            self.state.device = device
        if device != self.state.device:
            raise ProcessGroupError(
                f"this rank's tensors of group {self.name!r} were on tpu:{self.state.device} "
                f"before, and one is on tpu:{device} now. A rank uses one device in a process "
                "group: call torch.tpu.set_device(LOCAL_RANK) before making tensors."
            )

    @property
    def sharding(self) -> jax.sharding.NamedSharding:
        """How a collective's arrays lie: one piece on the device of each rank."""
        with self._making:
            if self._sharding is None:
                self._sharding = self._make_sharding()
            return self._sharding

    def _make_sharding(self) -> jax.sharding.NamedSharding:
        client = self.world.joined.client
        mine = client.local_devices()[self.state.device]
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
