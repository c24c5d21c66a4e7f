# SPDX-License-Identifier: Apache-2.0
"""What `csrc/backend.cpp` calls: c10d's collectives on tensors of the device.

Method names and arguments are those of `c10d::Backend`; tensors are tpu tensors, since
the C++ side gives CPU tensors to gloo. Several tensors in one call are one program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import torch
from torch import distributed as dist
from torchtpu_core.calls import user_line

from torchtpu_distributed import departures
from torchtpu_distributed.calls import Collective
from torchtpu_distributed.cpu_tensors import CpuTensors
from torchtpu_distributed.errors import ProcessGroupError
from torchtpu_distributed.first_calls import Pieces
from torchtpu_distributed.group import Group
from torchtpu_distributed.host_path import HostPath, check_splits
from torchtpu_distributed.host_running import HostRunner
from torchtpu_distributed.pending import Pending
from torchtpu_distributed.running import Runner
from torchtpu_distributed.uneven import Uneven, check_alone, check_sizes
from torchtpu_distributed.work import DeviceWork, SeriesWork

Tensors = Sequence[torch.Tensor]


class Backend:
    """The collectives of one process group.

    Args:
        group: the group.
        runner: runs its collectives.
        host: its exchanges that go through host memory.
        cpu_tensors: its collectives of CPU tensors.
        name: how the user calls the backend.
        is_world: whether its end is the end of the world.
    """

    def __init__(
        self,
        group: Group,
        runner: Runner | HostRunner,
        host: HostPath,
        cpu_tensors: CpuTensors,
        name: str,
        is_world: bool,
    ) -> None:
        self._group = group
        self._runner = runner
        self._uneven = Uneven(group, self._runner)
        self._host = host
        self._cpu_tensors = cpu_tensors
        self._name = name
        self._is_world = is_world
        self._series: list[DeviceWork] | None = None

    def allreduce(self, tensors: Tensors, opts: Any) -> DeviceWork:
        """Reduce a tensor over the ranks, in place."""
        check_alone(tensors)
        return self.allreduce_coalesced(tensors, opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any) -> DeviceWork:
        """`allreduce` of several tensors at once."""
        op = _prepare_reduction(opts.reduceOp, tensors)
        return self._run(opts, Collective.of("all_reduce", tensors, op=op), tensors, tensors)

    def reduce(self, tensors: Tensors, opts: Any) -> DeviceWork:
        """Reduce a tensor over the ranks; only the root's changes."""
        check_alone(tensors)
        operands = tensors
        if opts.reduceOp == dist.ReduceOp.PREMUL_SUM:
            operands = [tensor.clone() for tensor in tensors]
        op = _prepare_reduction(opts.reduceOp, operands)
        call = Collective.of("reduce", tensors, op=op, root=self._root(opts))
        return self._run(opts, call, operands, tensors, keep=self._is(opts.rootRank))

    def broadcast(self, tensors: Tensors, opts: Any) -> DeviceWork:
        """Give every rank the root's tensor."""
        check_alone(tensors)
        call = Collective.of("broadcast", tensors, root=self._root(opts))
        return self._run(opts, call, tensors, tensors)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> DeviceWork:
        """Give every rank the tensors of all, as a list."""
        check_alone(inputs)
        targets, tensor = outputs[0], inputs[0]
        self._check_count(targets)
        if len({tuple(t.shape) for t in targets}) > 1:
            return self._uneven.all_gather(targets, tensor)
        check_sizes(targets, tensor)
        call = Collective.of("all_gather_list", targets)
        return self._run(opts, call, [tensor], targets).gathered()

    def allgather_base(self, output: torch.Tensor, operand: torch.Tensor, opts: Any) -> DeviceWork:
        """Give every rank the tensors of all, one after another."""
        return self.allgather_into_tensor_coalesced([output], [operand], opts)

    def allgather_into_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any
    ) -> DeviceWork:
        """`allgather_base` of several tensors at once."""
        for output, operand in zip(outputs, inputs, strict=True):
            self._check_sizes(output, operand)
        return self._run(opts, Collective.of("all_gather", outputs), inputs, outputs)

    def allgather_coalesced(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any
    ) -> DeviceWork:
        """`allgather` of several tensors; `outputs[i]` are the tensors of rank i."""
        for i, operand in enumerate(inputs):
            work = self.allgather([[tensors[i] for tensors in outputs]], [operand], opts)
        return work

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> DeviceWork:
        """Give the root the tensors of all."""
        check_alone(inputs)
        tensor = inputs[0]
        mine = self._is(opts.rootRank)
        targets = outputs[0] if mine else [tensor] * self._group.size
        self._check_count(targets)
        check_sizes(targets, tensor)
        call = Collective.of("gather", targets, root=self._root(opts))
        work = self._run(opts, call, [tensor], targets, keep=mine)
        return work if mine else work.of([])

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> DeviceWork:
        """Give rank i the i-th of the root's tensors."""
        check_alone(outputs)
        output = outputs[0]
        if self._is(opts.rootRank):
            self._check_count(inputs[0])
            check_sizes(inputs[0], output)
            pieces = torch.stack([piece.detach() for piece in inputs[0]])
        else:
            pieces = output.new_empty((self._group.size, *output.shape))
        call = Collective.of("scatter", outputs, root=self._root(opts))
        return self._run(opts, call, [pieces], outputs)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> DeviceWork:
        """Reduce the i-th tensors of all ranks onto rank i."""
        check_alone(outputs)
        operands = inputs[0]
        self._check_count(operands)
        is_uneven = len({tuple(t.shape) for t in operands}) > 1
        if not is_uneven:
            check_sizes(operands, outputs[0])
        if opts.reduceOp == dist.ReduceOp.PREMUL_SUM:
            operands = [tensor.clone() for tensor in operands]
        op = _prepare_reduction(opts.reduceOp, operands)
        if is_uneven:
            return self._uneven.reduce_scatter(outputs[0], operands, op)
        return self._run(
            opts, Collective.of("reduce_scatter_list", outputs, op=op), operands, outputs
        )

    def reduce_scatter_base(
        self, output: torch.Tensor, operand: torch.Tensor, opts: Any
    ) -> DeviceWork:
        """Reduce over the ranks; rank i keeps the i-th piece."""
        return self.reduce_scatter_tensor_coalesced([output], [operand], opts)

    def reduce_scatter_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any
    ) -> DeviceWork:
        """`reduce_scatter_base` of several tensors at once."""
        for output, operand in zip(outputs, inputs, strict=True):
            self._check_sizes(operand, output)
        operands = inputs
        if opts.reduceOp == dist.ReduceOp.PREMUL_SUM:
            operands = [tensor.clone() for tensor in inputs]
        op = _prepare_reduction(opts.reduceOp, operands)
        return self._run(opts, Collective.of("reduce_scatter", outputs, op=op), operands, outputs)

    def alltoall_base(
        self,
        output: torch.Tensor,
        operand: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any,
    ) -> DeviceWork:
        """Send piece i to rank i; pieces of different sizes go through the host."""
        check_splits(output_splits, output, self._group.size)
        check_splits(input_splits, operand, self._group.size)
        if output_splits or input_splits:
            return self._host.all_to_all(
                output,
                operand,
                output_splits or self._even_splits(output),
                input_splits or self._even_splits(operand),
            )
        return self._run(opts, Collective.of("all_to_all", [output]), [operand], [output])

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any) -> DeviceWork:
        """Send tensor i to rank i, through the host: no rank knows whether all sizes are equal."""
        self._check_count(outputs)
        self._check_count(inputs)
        received = outputs[0].new_empty(sum(t.numel() for t in outputs))
        sent = torch.cat([t.detach().reshape(-1) for t in inputs])
        sizes = [t.numel() for t in outputs]
        work = self._host.all_to_all(received, sent, sizes, [t.numel() for t in inputs])
        with torch.no_grad():
            for target, piece in zip(outputs, received.split(sizes), strict=True):
                target.copy_(piece.view(target.shape))
        return work.of(outputs)

    def barrier(self, opts: Any) -> DeviceWork:
        """Wait for all ranks."""
        return self._host.barrier(_seconds_of(opts))

    def start_coalescing(self) -> None:
        """Begin a series of collectives with one work object; each is launched when called."""
        self._series = []

    def end_coalescing(self, on_host: Sequence[dist.Work] = ()) -> DeviceWork:
        """The work object of the series: messages are what it has to wait for.

        Args:
            on_host: works of gloo that belong to the series, those of CPU tensors.
        """
        series, self._series = self._series or [], None
        return SeriesWork(self._group.world.ledger, series, on_host)

    def _run(
        self, opts: Any, call: Collective, operands: Tensors, results: Tensors, keep: bool = True
    ) -> DeviceWork:
        later = bool(getattr(opts, "asyncOp", True))
        work = self._runner.run(
            call, operands, results, keep=keep, later=later, timeout_s=_seconds_of(opts)
        )
        return self._in_series(work)

    def _in_series(self, work: DeviceWork) -> DeviceWork:
        if self._series is not None:
            self._series.append(work)
        return work

    def host_record(
        self,
        kind: str,
        op: Any,
        root: int,
        tensors: Tensors,
        sent: Sequence[int],
        received: Sequence[int],
        timeout_s: float | None,
    ) -> Pending:
        """What stands for a collective of CPU tensors; raises if another rank calls another."""
        name = "" if op is None else _name_of(op) or "premul_sum"
        pieces = Pieces(sent=_bytes(sent, tensors), received=_bytes(received, tensors))
        return self._cpu_tensors.begin(
            kind, name, root, tensors, pieces if sent else None, timeout_s
        )

    def host_withdrawn(self, pending: Pending) -> None:
        """Gloo has refused a collective of CPU tensors."""
        self._cpu_tensors.withdraw(pending)

    def host_left(self) -> None:
        """A wait for a collective of CPU tensors has ended before gloo has."""
        self._host.left()

    def sequence_number(self) -> int:
        """Number of collectives so far."""
        return self._group.seq

    def split(self, ranks: Sequence[int], name: str, timeout_s: float | None) -> Any:
        """A backend for some of the group's ranks."""
        from torchtpu_distributed.creation import make

        members = tuple(self._group.ranks[i] for i in ranks)
        chosen_s = self._group.timeout_s if timeout_s is None else timeout_s
        unique = name or f"{self._group.name}/split/{self._group.seq}/{'_'.join(map(str, members))}"
        return make(self._group.world, unique, members, chosen_s, self._name, is_world=False)

    def set_timeout(self, timeout_s: float) -> None:
        """Seconds a collective may take from now on."""
        self._group.timeout_s = timeout_s
        self._cpu_tensors.group.timeout_s = timeout_s

    def shutdown(self) -> None:
        """Leave the group; with the default one finish what is under way, and end the world.

        Raises:
            CollectiveError: something has failed that nobody waited for, or this rank leaves out
                what another one has called.
        """
        world, groups = self._group.world, (self._group, self._cpu_tensors.group)
        if not self._is_world:
            world.leave(groups, user_line())
            return
        world.end(departures.destroyed(user_line()), self._group.timeout_s)
        left, world.left = world.left, None
        if left is not None:
            raise left

    def abort(self) -> None:
        """Leave at once."""
        if self._is_world:
            self._group.world.end("it aborted its process group", 0.0)

    def _is(self, rank: int) -> bool:
        return self._group.rank == rank

    def _root(self, opts: Any) -> int:
        root, size = int(opts.rootRank), self._group.size
        if not 0 <= root < size:
            raise ProcessGroupError(
                f"rank {root} is not in group {self._group.name!r}, whose ranks are 0 to "
                f"{size - 1}: src and dst are ranks of the world, group_src and group_dst of the "
                "group."
            )
        return root

    def _even_splits(self, tensor: torch.Tensor) -> list[int]:
        return [tensor.shape[0] // self._group.size] * self._group.size

    def _check_count(self, tensors: Tensors) -> None:
        if len(tensors) != self._group.size:
            raise ProcessGroupError(
                f"{len(tensors)} tensors for the {self._group.size} ranks of group "
                f"{self._group.name!r}: give one per rank."
            )

    def _check_sizes(self, whole: torch.Tensor, piece: torch.Tensor) -> None:
        if whole.numel() != self._group.size * piece.numel() or whole.dtype != piece.dtype:
            raise ProcessGroupError(
                f"a tensor of {whole.numel()} elements of {whole.dtype} is not {self._group.size} "
                f"times one of {piece.numel()} of {piece.dtype}: make it "
                f"{self._group.size * piece.numel()} of {piece.dtype}."
            )


def _prepare_reduction(op: Any, tensors: Tensors) -> str:
    """The reduction's name; PREMUL_SUM multiplies the tensors in place first.

    Raises:
        RuntimeError: a reduction that numbers of this dtype do not have.
    """
    if op == dist.ReduceOp.PREMUL_SUM:
        _check_dtypes("SUM", tensors)
        with torch.no_grad():
            for tensor in tensors:
                tensor.mul_(op.__getstate__()[1])
        return "sum"
    name = _name_of(op)
    if not name:
        raise ProcessGroupError(f"{op!r} is not a reduction of torch.distributed.ReduceOp.")
    _check_dtypes(name.upper(), tensors)
    return name


def _name_of(op: Any) -> str:
    return next((n.lower() for n in _REDUCED if op == getattr(dist.ReduceOp, n)), "")


def _seconds_of(opts: Any) -> float | None:
    """The timeout of one call; None if it has none of its own."""
    seconds: float = opts.timeout.total_seconds()
    return seconds if seconds > 0 else None


def _bytes(elements: Sequence[int], tensors: Tensors) -> tuple[int, ...]:
    return tuple(count * tensors[0].itemsize for count in elements)


_INTEGERS = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
_REALS = _INTEGERS | {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_NUMBERS = _REALS | {torch.complex64, torch.complex128}
#: What each reduction takes; anything else is refused before a rank waits for it.
_REDUCED: Mapping[str, Set[torch.dtype]] = {
    "SUM": _NUMBERS,
    "AVG": _NUMBERS,
    "PRODUCT": _NUMBERS,
    "MAX": _REALS,
    "MIN": _REALS,
    "BAND": _INTEGERS,
    "BOR": _INTEGERS,
    "BXOR": _INTEGERS,
}


def _check_dtypes(name: str, tensors: Tensors) -> None:
    for dtype in {tensor.dtype for tensor in tensors} - _REDUCED[name]:
        kind = "non-integral " if _REDUCED[name] is _INTEGERS else ""
        raise RuntimeError(
            f"Cannot use ReduceOp.{name} with {kind}dtype {dtype}: convert to one of "
            f"{', '.join(sorted(map(str, _REDUCED[name])))}, or view the bits as one."
        )
