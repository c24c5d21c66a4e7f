# SPDX-License-Identifier: Apache-2.0
"""Collectives by gloo on host memory: what the simulated device's own memory is.

Each function begins one collective and says how it ends. Legend: n ranks; `sources` and
`targets` are flat CPU tensors over the memory of the device. Data that is moved goes as
bytes; what gloo cannot reduce is gathered and folded here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

from torchtpu_distributed.calls import Collective

Tensors = Sequence[Tensor]
#: Works to wait for, and what to do then.
Begun = tuple[list[Any], Callable[[], None]]

#: Above this, an all-gather is a broadcast of each rank, which needs no second copy.
_GATHER_BY_COPY_BYTES = 1 << 16
#: Up to as many bytes of copies on each rank, an all-reduce is one exchange of all operands, and
#: not gloo's ring of two rounds. As in `csrc/direct_calls.cpp`: ranks may go different ways.
_REDUCE_BY_EXCHANGE_BYTES = 2 << 20
_REDUCED = frozenset(
    {torch.float32, torch.float64, torch.float16, torch.bfloat16}
    | {torch.int8, torch.uint8, torch.int32, torch.int64}
)
_OPS: Mapping[str, Any] = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.SUM,
    "product": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}
#: Truth values reduce as the bytes 0 and 1.
_OF_BOOLS: Mapping[str, str] = {
    "sum": "max",
    "avg": "max",
    "bor": "max",
    "product": "min",
    "band": "min",
}
_PAIRWISE: Mapping[str, Callable[..., Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "product": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


class Gloo:
    """A gloo backend and this rank's place in it.

    Args:
        backend: the backend.
    """

    def __init__(self, backend: dist.ProcessGroupGloo) -> None:
        self.backend: Any = backend
        self.rank, self.size = backend.rank(), backend.size()

    def all_reduce(self, call: Collective, sources: Tensors, targets: Tensors) -> Begun:
        """Targets hold the operands, and get what all ranks reduce to."""
        return _together([self._reduce(t, call.op) for t in targets])

    def reduce(self, call: Collective, sources: Tensors, targets: Tensors) -> Begun:
        """The same for the root; others have no targets, and gloo may use what it is given."""
        if self.size == 2:
            pairs = zip(sources, targets or sources, strict=True)
            return _together([self._reduce_two(s, t, call.op, call.root) for s, t in pairs])
        if not targets:
            return _together([self._reduce(t.clone(), call.op, call.root) for t in sources])
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source)
        return _together([self._reduce(t, call.op, call.root) for t in targets])

    def broadcast(self, call: Collective, sources: Tensors, targets: Tensors) -> Begun:
        """The root has sources, the others targets."""
        return [self._broadcast(t, call.root) for t in (*sources, *targets)], _nothing

    def all_gather(self, call: Collective, sources: Tensors, targets: Tensors) -> Begun:
        """Each target is as long as n sources."""
        begun = [
            self._gather(source, list(target.view(self.size, -1)))
            for source, target in zip(sources, targets, strict=True)
        ]
        return [work for works in begun for work in works], _nothing

    def all_gather_list(self, call: Collective, sources: Tensors, targets: Tensors) -> Begun:
        """One source; target i is that of rank i."""
        return self._gather(sources[0], targets), _nothing

    def gather(self, call: Collective, sources: Tensors, targets: Tensors) -> Begun:
        """The same for the root alone."""
        source, root = sources[0], call.root
        if self.size == 2:
            if targets:
                targets[root].copy_(source)
            return [self._bring(source, targets[1 - root] if targets else None, root)], _nothing
        options = dist.GatherOptions()
        options.rootRank = root
        outputs = [[_as_bytes(t) for t in targets]] if targets else []
        return [self.backend.gather(outputs, [_as_bytes(source)], options)], _nothing

    def scatter(self, call: Collective, sources: Tensors, targets: Tensors) -> Begun:
        """The root's one source has a piece for each rank's target."""
        options = dist.ScatterOptions()
        options.rootRank = call.root
        inputs = [list(_as_bytes(s).view(self.size, -1)) for s in sources]
        return [self.backend.scatter([_as_bytes(targets[0])], inputs, options)], _nothing

    def all_to_all(self, call: Collective, sources: Tensors, targets: Tensors) -> Begun:
        """Piece i of each source goes to rank i."""
        pairs = zip(sources, targets, strict=True)
        return [self._all_to_all(source, target) for source, target in pairs], _nothing

    def reduce_scatter(self, call: Collective, sources: Tensors, targets: Tensors) -> Begun:
        """Each source has a piece for each rank; a rank adds up the pieces for it."""
        begun: list[Begun] = []
        for source, target in zip(sources, targets, strict=True):
            pieces = torch.empty_like(source)
            end = _folding(list(pieces.view(self.size, -1)), call.op, target)
            begun.append(([self._all_to_all(source, pieces)], end))
        return _together(begun)

    def reduce_scatter_list(self, call: Collective, sources: Tensors, targets: Tensors) -> Begun:
        """The same, with a source for each rank."""
        return self.reduce_scatter(call, [torch.cat(list(sources))], targets)

    def _reduce(self, view: Tensor, op: str, root: int = -1) -> Begun:
        view, op = _countable(view, op)
        if root < 0 and self._is_exchanged(view, op):
            return self._reduce_by_exchange(view, op)
        if not _is_whole_by_gloo(view, op):
            gathered = view.new_empty((self.size, view.numel()))
            return self._gather(view, list(gathered)), _folding(list(gathered), op, view)
        options = dist.AllreduceOptions() if root < 0 else dist.ReduceOptions()
        options.reduceOp = _OPS[op]
        if root < 0:
            work = self.backend.allreduce([view], options)
        else:
            options.rootRank = root
            work = self.backend.reduce([view], options)
        return [work], (lambda: _divide(view, self.size)) if op == "avg" else _nothing

    def _is_exchanged(self, view: Tensor, op: str) -> bool:
        copies = (self.size - 1) * (1 if self.size == 2 else 2) * view.nbytes
        is_better = self.size <= view.numel() or not _is_whole_by_gloo(view, op)
        return self.size > 1 and is_better and copies <= _REDUCE_BY_EXCHANGE_BYTES

    def _reduce_by_exchange(self, view: Tensor, op: str) -> Begun:
        """Every rank sends its operand to every other one, and reduces them all."""
        sent = view if self.size == 2 else view.repeat(self.size - 1)
        received = torch.empty_like(sent)
        rows = list(received.view(self.size - 1, -1))
        rows.insert(self.rank, sent[: view.numel()])
        counts = [view.nbytes] * self.size
        counts[self.rank] = 0
        work = self._all_to_all(sent, received, counts)
        return [work], _folding(rows, op, view)

    def _reduce_two(self, source: Tensor, target: Tensor, op: str, root: int) -> Begun:
        """Of two ranks, the root gets the other's operand and reduces both."""
        if self.rank != root:
            return [self._bring(source, None, root)], _nothing
        received = torch.empty_like(source)
        rows = [source if rank == root else received for rank in range(2)]
        return [self._bring(source, received, root)], _folding(rows, op, target)

    def _bring(self, source: Tensor, received: Tensor | None, root: int) -> Any:
        """Of two ranks, the root gets in `received` what the other one has for a source."""
        nothing = source.new_empty(0)
        if received is None:
            sent = [source.nbytes if rank == root else 0 for rank in range(2)]
            return self._all_to_all(source, nothing, [0, 0], sent)
        counts = [0 if rank == root else source.nbytes for rank in range(2)]
        return self._all_to_all(nothing, received, counts, [0, 0])

    def _broadcast(self, view: Tensor, root: int) -> Any:
        options = dist.BroadcastOptions()
        options.rootRank = root
        return self.backend.broadcast([_as_bytes(view)], options)

    def _gather(self, source: Tensor, pieces: Tensors) -> list[Any]:
        if source.nbytes <= _GATHER_BY_COPY_BYTES:
            outputs = [[_as_bytes(piece) for piece in pieces]]
            return [self.backend.allgather(outputs, [_as_bytes(source)], AllgatherOptions())]
        pieces[self.rank].copy_(source)
        return [self._broadcast(piece, rank) for rank, piece in enumerate(pieces)]

    def _all_to_all(
        self,
        source: Tensor,
        target: Tensor,
        received: Sequence[int] = (),
        sent: Sequence[int] | None = None,
    ) -> Any:
        """Bytes by rank, the same both ways unless both are given; without any: even ones."""
        sent = received if sent is None else sent
        return self.backend.alltoall_base(
            _as_bytes(target), _as_bytes(source), received, sent, dist.AllToAllOptions()
        )


def _together(begun: Sequence[Begun]) -> Begun:
    def end() -> None:
        for _, each in begun:
            each()

    return [work for works, _ in begun for work in works], end


def _nothing() -> None:
    """What most collectives end with."""


def _is_whole_by_gloo(view: Tensor, op: str) -> bool:
    """Whether gloo reduces them as PyTorch does.

    It compares numbers: whether a NaN survives depends on the rank that has it.
    """
    compares = op in ("max", "min")
    return op in _OPS and view.dtype in _REDUCED and not (compares and view.dtype.is_floating_point)


def _as_bytes(view: Tensor) -> Tensor:
    return view.view(torch.uint8)


def _countable(view: Tensor, op: str) -> tuple[Tensor, str]:
    """The same memory as numbers that can be reduced one by one."""
    if view.dtype == torch.bool:
        return view.view(torch.uint8), _OF_BOOLS.get(op, op)
    if view.dtype.is_complex and op in ("sum", "avg"):
        return torch.view_as_real(view).view(-1), op
    return view, op


def _folding(pieces: Tensors, op: str, target: Tensor) -> Callable[[], None]:
    """Reduces what the ranks brought, in their order. The target may be one of the first two."""
    of_numbers = _countable(target, op)[1]
    rows, out = [_countable(piece, op)[0] for piece in pieces], _countable(target, op)[0]

    def end() -> None:
        function = _PAIRWISE[of_numbers]
        if len(rows) == 1:
            out.copy_(rows[0])
        for i in range(1, len(rows)):
            function(rows[0] if i == 1 else out, rows[i], out=out)
        if of_numbers == "avg":
            _divide(out, len(rows))

    return end


def _divide(total: Tensor, n: int) -> None:
    """Integers round towards zero, as NCCL's average does."""
    floating = total.dtype.is_floating_point or total.dtype.is_complex
    total.div_(n, rounding_mode=None if floating else "trunc")
