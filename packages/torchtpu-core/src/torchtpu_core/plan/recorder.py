# SPDX-License-Identifier: Apache-2.0
"""Runs a script's operators on shapes alone and records those of the device.

Tensors of the device are PyTorch's fake tensors; tensors of the host stay real while they
are small, so that samplers, tokenizers and argument parsing work. A value that the host
reads from the device is a placeholder, noted with the user's line.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import TorchDispatchMode

from torchtpu_core.errors import PlanError
from torchtpu_core.lowering import unique
from torchtpu_core.lowering.interpreter import overload_name
from torchtpu_core.lowering.table import Kind, Lowering
from torchtpu_core.plan import (
    arguments,
    calls,
    checked_values,
    choices,
    foreach,
    identity_copies,
    op_kinds,
    op_work,
    placeholders,
    samples,
    sparse_shapes,
    whole_layers,
)
from torchtpu_core.plan.arguments import DEVICE
from torchtpu_core.plan.records import CHECK, LOOK_UPS, HostRead, Op, Phase, Recording, Work
from torchtpu_core.plan.shapes import Shapes
from torchtpu_core.plan.storages import Storages
from torchtpu_core.plan.user_lines import UserLines
from torchtpu_core.runtime import tables

#: Host tensors with more elements than this have no values either.
LARGEST_HOST_TENSOR = 1 << 22
#: Operators that are recorded; beyond it is an endless loop, or memory's end.
MOST_OPERATORS = 2_000_000
#: Values that one line of the script reads in a plan; beyond it is an endless loop.
MOST_READS = 10_000
_DESUGARED = ("DTensor", "AsyncCollectiveTensor")
_aten = torch.ops.aten
_DEVICE_OF = torch.ops.prim.device.default
#: What functional collectives do with their results, whose fake kernels make new storages.
_WAITS = ("_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd")


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """The dispatch mode under which the script runs."""

    def __init__(
        self, recording: Recording, *, keep_calls: bool = False, chosen: float = 1.0
    ) -> None:
        super().__init__()
        self.recording = recording
        self.keep_calls = keep_calls
        self.chosen = chosen
        self.shapes = Shapes()
        self.fake = self.shapes.mode
        self.storages = Storages(recording)
        self.lines = UserLines()
        self.in_optimizer = False
        self._tables: Mapping[str, Lowering] | None = None

    # What runs -------------------------------------------------------------------

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is _DEVICE_OF and type(args[0]) is FakeTensor:  # views ask for it, each
            return args[0].fake_device
        kwargs = kwargs or {}
        if any(kind.__name__ in _DESUGARED for kind in types):
            return foreach.on_local_parts(func, args, kwargs, self._run)
        flat = arguments.leaves((args, kwargs), [])
        inputs = [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]
        fakes = [tensor for tensor in inputs if isinstance(tensor, FakeTensor)]
        if not fakes and (_other_shapes() or not self._makes_fake(func, args, flat)):
            return func(*args, **kwargs)
        if fakes and fakes[0].fake_mode is not self.fake:
            return func(*args, **kwargs)
        if _is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        if func in whole_layers.PARTS:
            return self._taken_apart(func, args, kwargs)
        if func._schema.name in _WAITS:
            return self._same(args[0])
        special = self._data_read(func, args, kwargs)
        if special is not _RUN:
            return special
        if func is _aten.nonzero.default:
            return self._positions(args[0])
        parts = choices.parts(func, args, self._lowerings())
        if parts is not None:
            with self:
                return parts(*args, **kwargs)
        try:
            out = self.shapes.result(func, types, args, kwargs, inputs)
        except torch._subclasses.fake_tensor.DynamicOutputShapeException as error:
            raise PlanError(choices.refusal(func, self.lines.forward())) from error
        self._record(func, args, kwargs, flat, inputs, out)
        return out

    def _taken_apart(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A whole layer: its parts are recorded, and it is kept as the one call that runs."""
        index, keeps = len(self.recording.ops), self.keep_calls
        self.keep_calls = False
        try:
            with self:
                out = whole_layers.PARTS[func](*args, **kwargs)
        finally:
            self.keep_calls = keeps
        if keeps:
            self._keep(func, args, kwargs, out, self.recording.ops[index], index)
        return out

    def _run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """An operator on ordinary tensors."""
        return self.__torch_dispatch__(func, (), args, kwargs)

    def _same(self, tensor: Any) -> Any:
        """Another tensor of the same storage: who reads it waits for the storage's value."""
        with self.fake:
            out = _aten.alias.default(tensor)
        placeholders.follow("alias", (tensor,), [tensor], [out])
        return out

    def _makes_fake(self, func: Any, args: Sequence[Any], flat: Sequence[Any]) -> bool:
        """Whether an operator without fake operands has a fake result."""
        if any(isinstance(leaf, torch.device) and leaf.type == DEVICE for leaf in flat):
            return True
        if any(isinstance(leaf, torch.Tensor) for leaf in flat):
            return False
        if any(isinstance(leaf, torch.device) and leaf.type == "meta" for leaf in flat):
            return False
        made = any(isinstance(result.type, torch.TensorType) for result in func._schema.returns)
        return (
            made
            and func.namespace == "aten"
            and arguments.asked_elements(args) > LARGEST_HOST_TENSOR
        )

    def _data_read(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The placeholder of a value that the host reads, or `_RUN`."""
        if func is _aten._local_scalar_dense.default:
            self._note_read("a number (.item(), float(), bool() or an if)", args[0])
            if args[0].dtype is torch.bool and not placeholders.is_known(args[0]):
                checked = checked_values.harmless(self.lines.asking())
                return placeholders.of(args[0]) if checked is None else checked
            return placeholders.of(args[0])
        if func is _aten.equal.default:
            self._note_read("whether two tensors are equal", *args[:2])
            return True
        if func is _aten.index.Tensor and self.lines.within("torch.nn.modules._functions"):
            return args[0]  # SyncBatchNorm drops ranks without samples, of which there are none.
        if func is _aten._to_copy.default and _to_small_host(args[0], kwargs.get("device")):
            self._note_read("a tensor (.cpu(), .numpy() or .tolist())", args[0])
            value = placeholders.of(args[0]) if placeholders.is_known(args[0]) else 0
            return torch.full(args[0].shape, value, dtype=kwargs.get("dtype") or args[0].dtype)
        if func is _aten.copy_.default and not isinstance(args[0], FakeTensor):
            self._note_read("a tensor (copy_ into host memory)", args[1])
            return args[0]
        return _RUN

    def _note_read(self, what: str, *read: Any) -> None:
        line = self.lines.reading()
        if self.keep_calls:
            places = calls.placed(read, self._number)
            found = (place for place in places if isinstance(place, calls.Place))
            self.recording.downloads += [(len(self.recording.ops), place) for place in found]
        known = self.recording.reads.setdefault(line, HostRead(line, what, 0))
        known.times += 1
        known.last = len(self.recording.ops)
        if known.times > MOST_READS:
            raise PlanError(
                f"{line} has read {what} {MOST_READS:,} times, and the script goes on. A loop that "
                "ends by a value of the device never ends without values: a plan reads 1, and for "
                "a tensor 0. End it by a count as well, such as `for _ in range(limit)`."
            )
        name = CHECK if self.lines.within("torch.distributions") else "host read"
        self.recording.ops.append(Op(name, Work.HOST, self._phase(), line))

    def _positions(self, tensor: Any) -> Any:
        """Positions of the elements that are taken to be true, found as the device finds them."""
        known, elements = tensor.constant, tensor.numel()
        count = (
            choices.count(self.chosen, elements) if known is None else int(known.count_nonzero())
        )
        with self:
            if tensor.device.type == DEVICE:
                torch.count_nonzero(tensor)
                self._note_read(
                    f"how many elements are true ({count:,} of {elements:,} taken; --chosen)"
                )
            return unique.positions(tensor, count)

    # What is recorded ------------------------------------------------------------

    def _phase(self) -> Phase:
        if self.in_optimizer:
            return Phase.OPTIMIZER
        if torch._C._current_graph_task_id() != -1:
            return Phase.RECOMPUTE if _is_recomputation() else Phase.BACKWARD
        return Phase.FORWARD

    def _record(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        flat: list[Any],
        inputs: list[Any],
        out: Any,
    ) -> None:
        name = func._schema.name.partition("::")[2]
        outputs = [leaf for leaf in arguments.leaves(out, []) if isinstance(leaf, FakeTensor)]
        placeholders.follow(name, args, inputs, outputs)
        samples.follow(name, inputs, outputs)
        touched = sparse_shapes.touched(inputs, outputs)
        inputs, outputs = sparse_shapes.parts(inputs), sparse_shapes.parts(outputs)
        if name in op_work.FREE or func.is_view or not (outputs or inputs):
            self._touch(outputs, name)
            if self.keep_calls and not func.is_view:
                self._keep_copy(inputs, outputs)
            return
        phase = self._phase()
        backward = phase is Phase.BACKWARD
        line = self.lines.backward() if backward else self.lines.forward()
        on_device = [t for t in inputs if isinstance(t, FakeTensor) and t.device.type == DEVICE]
        results = [t for t in outputs if t.device.type == DEVICE]
        if not on_device and not results:
            return
        op = Op(name, Work.ELEMENTWISE, phase, line)
        read = [] if name in op_work.LIKE else on_device
        read = read[:-1] if name in op_work.UNREAD else read
        op.reads = tuple(self.storages.key(t, phase, line) for t in read)
        written = results or arguments.mutated(func, args, kwargs)
        op.writes = tuple(self.storages.key(t, phase, line) for t in written)
        most = sys.maxsize if touched is None else touched
        compared = func.namespace == "aten" and op_work.is_compared(name, args)
        op.read_bytes, op.write_bytes = op_work.touched_bytes(
            "" if compared else name,
            read,
            [min(arguments.nbytes(t), most) for t in read],
            [min(arguments.nbytes(t), most) for t in written],
        )
        if name in LOOK_UPS:
            op.looked_up = inputs[1].numel()
        op.samples = samples.read(name, inputs)
        op.drawn = op_work.drawn_of(name, written)
        op.identity = identity_copies.is_identity(name, args, out)
        op.strided = op_work.is_strided(name, args)
        op.approximate = kwargs.get("approximate") == "tanh"
        op.differentiable = torch.is_grad_enabled()
        if not compared:
            op_kinds.classify(op, func, args, flat, on_device, results, self.recording.rank)
        if op.work is Work.ELEMENTWISE and self._runs_on_host(func):
            op.work, op.host_bytes = Work.HOST, sum(op.read_bytes) + sum(op.write_bytes)
        if self.keep_calls:
            self._keep(func, args, kwargs, out, op, len(self.recording.ops))
        self.recording.ops.append(op)
        if len(self.recording.ops) > MOST_OPERATORS:
            raise PlanError(
                f"{line} is the {MOST_OPERATORS:,}th operator, and the script goes on: a plan "
                "stops after the second step of the optimizers, or at the script's end. End the "
                "loop by a small count."
            )

    def _runs_on_host(self, func: Any) -> bool:
        """Whether an operator's only lowering is a fallback."""
        row = self._lowerings().get(overload_name(func))
        return row is not None and row.kind is Kind.HOST

    def _lowerings(self) -> Mapping[str, Lowering]:
        if self._tables is None:
            self._tables = tables.current() or tables.without_a_device()
        return self._tables

    def _keep(self, func: Any, args: Any, kwargs: Any, out: Any, op: Op, index: int) -> None:
        """Keeps an operator with its arguments; `index` operators were recorded before it."""
        given, named, made = calls.placed((args, kwargs, out), self._number)
        self.recording.calls.append(
            calls.Call(func, given, named, made, op.phase, op.line, index, op.group)
        )

    def _keep_copy(self, inputs: list[Any], outputs: list[Any]) -> None:
        """Keeps what gives a storage of its own to the value of another."""
        known = [t for t in inputs if isinstance(t, FakeTensor) and t.device.type == DEVICE]
        if len(known) != 1 or len(outputs) != 1 or outputs[0].numel() != known[0].numel():
            return
        target, source = calls.placed((outputs[0], known[0]), self._number)
        if target is outputs[0] or target.storage == source.storage:
            return
        phase, index = self._phase(), len(self.recording.ops)
        self.recording.calls.append(
            calls.Call(_aten.copy_.default, (target, source), {}, target, phase, "", index)
        )

    def _number(self, tensor: torch.Tensor) -> int | None:
        """The number of a device tensor's storage."""
        if not isinstance(tensor, FakeTensor) or tensor.device.type != DEVICE:
            return None
        if sparse_shapes.is_sparse(tensor):
            raise PlanError(
                "a step with sparse tensors, such as gradients of embeddings with sparse=True, is "
                "no program that XLA's TPU compiler can price. Plan it without --compiler xla-tpu."
            )
        return self.storages.key(tensor, self._phase(), "")

    def _touch(self, outputs: list[Any], name: str) -> None:
        """Storages made by operators that are no work still take memory."""
        for tensor in outputs:
            if tensor.device.type == DEVICE:
                self.storages.key(tensor, self._phase(), "")


def _is_recomputation() -> bool:
    """Whether an operator of a backward pass is the forward pass's (`csrc/recomputation.h`)."""
    autograd = torch._C._autograd
    if not torch.is_grad_enabled():
        return False
    if autograd._top_saved_tensors_default_hooks(False) is not None:
        return True
    is_own = isinstance(torch._C._current_autograd_node(), BackwardCFunction)
    return is_own and not autograd._get_current_graph_task_keep_graph()


def _other_shapes() -> bool:
    """Whether somebody asks a fake mode for shapes, as DTensor does of global tensors: no work.

    The recorder comes before such a mode, though that was entered later.
    """
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


@functools.cache
def _is_composite(func: Any) -> bool:
    """Whether `func` is made of others on the device.

    Autograd takes such an operator apart before it comes here; tensors of inference mode and
    calls below autograd, such as DTensor's, have none. `can_decompose` also holds for kernels with
    a decomposition in Python alone, as interpolation has, which the device runs as they are.
    """
    if func.namespace == "prim" or func is _aten._has_compatible_shallow_copy_type.default:
        return False
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    own = has_kernel(func.name(), "PrivateUse1")
    return not own and has_kernel(func.name(), "CompositeImplicitAutograd")


def _to_small_host(tensor: Any, target: Any) -> bool:
    """Whether a copy brings a small tensor from the device to the host."""
    return (
        isinstance(tensor, FakeTensor)
        and tensor.device.type == DEVICE
        and target is not None
        and torch.device(target).type == "cpu"
        and tensor.numel() <= LARGEST_HOST_TENSOR
    )


class _Run:
    """Marks an operator that has no placeholder."""


_RUN = _Run()
