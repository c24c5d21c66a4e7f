# SPDX-License-Identifier: Apache-2.0
"""Runs a user's script as one rank that stands for others, on shapes alone.

The script is not edited: the environment is that of `torchrun`, process groups are
PyTorch's fake ones, data loaders work in the process, checkpoints are not written, and the
script is stopped after its second step, by which time the optimizers' states exist. Everything
that is replaced is put back afterwards. A script without an optimizer runs to its end
(`plan.module_calls` says what its step is).
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import distributed as dist
from torch import nn

from torchtpu_core import plugins
from torchtpu_core.errors import PlanError, TorchTPUError
from torchtpu_core.ici.slices import Slice
from torchtpu_core.plan import (
    checkpoints,
    ddp,
    device_meshes,
    environment_ranks,
    host_lengths,
    script_process,
    sparse_shapes,
    stand_ins,
    swapped_tensors,
)
from torchtpu_core.plan.exchange import Alone, Mailbox
from torchtpu_core.plan.identity_copies import drop_identity_copies
from torchtpu_core.plan.module_calls import ModuleCalls
from torchtpu_core.plan.ranks import Branches, watch
from torchtpu_core.plan.recorder import Recorder
from torchtpu_core.plan.records import Category, Phase, Recording
from torchtpu_core.plan.script_errors import (
    add_line,
    exited,
    explained,
    quiet_shapes,
    show_traceback,
)
from torchtpu_core.plan.steps import STEPS, Steps, name_gradients, outside_the_step
from torchtpu_core.runtime import autocast_layers, autograd_threads, fake_results, recurrent_layers


class _Enough(BaseException):
    """Ends the script once enough steps are recorded; no handler of the script's catches it."""


def record(
    script: Path,
    arguments: Sequence[str],
    where: Slice,
    slices: int,
    *,
    rank: int = 0,
    branches: Branches | None = None,
    mailbox: Mailbox | Alone | None = None,
    keep_calls: bool = False,
    limit_s: float = 0.0,
    chosen: float = 1.0,
    say: Callable[[str], None] | None = None,
) -> Recording:
    """What the script does in its second step, as one rank of all devices of the slices.

    Args:
        script: path of the user's script.
        arguments: its command line.
        where: one slice.
        slices: how many there are.
        rank: which rank it is.
        branches: is told what the script asks about its rank.
        mailbox: how it exchanges objects with other ranks that are recorded.
        keep_calls: also keep each operator's arguments, to make a program of the step.
        limit_s: seconds that the script may run, 0 for any.
        chosen: the share of their elements that masks are taken to choose.
        say: is told now and then how far the script is.

    Raises:
        PlanError: the script failed, or did nothing on the device.
    """
    if not script.is_file():
        raise PlanError.no_script(script)
    recording = Recording(world_size=where.devices * slices, rank=rank, script=str(script))
    recurrent_layers.register()
    autocast_layers.register()
    fake_results.register()
    host_lengths.register()
    recorder = Recorder(recording, keep_calls=keep_calls, chosen=chosen)
    module_calls = ModuleCalls(recording)

    def progress(seconds: float, line: str) -> None:
        if say is not None:
            say(f"{script}: {seconds:.0f} s, {_so_far(recording)}, at {line}")

    with contextlib.ExitStack() as stack:
        stack.enter_context(_environment(script, arguments, where, slices, rank))
        stack.enter_context(_replaced(recorder))
        stand_ins.exchange(stack, mailbox or Alone())
        environment_ranks.follow(stack, branches, where.devices_per_host)
        stack.enter_context(script_process.exits_as_exceptions())
        stack.enter_context(script_process.spawned_ranks_in_process(recording, branches))
        stack.enter_context(script_process.started_processes(recording, branches))
        if branches is not None:
            watch(stack, branches)
        stack.enter_context(module_calls.followed())
        stack.enter_context(recorder.lines.modules.followed())
        stack.enter_context(recorder)
        try:
            _run(script, recording, limit_s, progress)
        finally:
            autograd_threads.wait()
            if dist.is_initialized():
                dist.destroy_process_group()
    if not recording.ops:
        raise PlanError(
            f"{script} put no work on the device 'tpu'. Choose that device where the script "
            "chooses one, for example torch.accelerator.current_accelerator(), or by the script's "
            "own option after `--`."
        )
    if not recording.step_ends:
        recording.notes.append(_step_without_optimizer(script, recording, module_calls))
    elif outside := outside_the_step(recording):
        recording.notes.append(outside)
    drop_identity_copies(recording)
    return recording


def _step_without_optimizer(script: Path, recording: Recording, module_calls: ModuleCalls) -> str:
    """Chooses the step of a script that no optimizer ended; what was chosen, as a sentence.

    Raises:
        PlanError: it made an optimizer, and neither stepped it nor called a module.
    """
    chosen = module_calls.choose_step()
    if recording.optimizers and not chosen:
        raise PlanError(
            f"{script} made an optimizer, but never stepped it nor called a module: its loop ran "
            "no step. Let it run two; the script's own options go after `--`."
        )
    return chosen or "no optimizer step was seen: the whole script is one step"


def _run(
    script: Path, recording: Recording, limit_s: float, progress: Callable[[float, str], None]
) -> None:
    """Runs the script; whatever ends it too early is told.

    The clock runs no longer than the script: what is put back afterwards must not be stopped.

    Raises:
        PlanError: it failed, ended itself, or ran too long.
    """
    try:
        with (
            script_process.clock(limit_s, progress),
            warnings.catch_warnings(),
            quiet_shapes(),
        ):
            # copy.deepcopy asks every tensor for it.
            warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
            script_process.run_as_main(script)
    except _Enough:
        pass
    except SystemExit as ended:
        if ended.code not in (0, None):
            raise PlanError(exited(script, ended.code)) from ended
    except script_process.Ended as ended:
        raise PlanError(f"{script} ended itself by os._exit({ended}).") from ended
    except script_process.TooLong as error:
        raise PlanError(
            f"{script} ran for {limit_s:.0f} s, and was at {error}: {_so_far(recording)}. A loop "
            "that ends by a value of the device, by another process or by the clock never ends "
            "in a plan: end it by a count too, or allow it more time by --timeout."
        ) from error
    except TorchTPUError as error:
        add_line(error)
        raise
    except Exception as error:
        show_traceback(error)
        raise PlanError(explained(script, error)) from error


def _so_far(recording: Recording) -> str:
    """How much is recorded, in words."""
    steps = len(recording.step_ends)
    return f"{len(recording.ops):,} operators and {steps} of {STEPS} optimizer steps recorded"


@contextlib.contextmanager
def _environment(
    script: Path, arguments: Sequence[str], where: Slice, slices: int, rank: int
) -> Iterator[None]:
    """The process as torchrun would start a rank."""
    world = where.devices * slices
    variables = {
        "TORCH_TPU_TARGET": where.name,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % where.devices_per_host),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(where.devices_per_host),
        "GROUP_RANK": str(rank // where.devices_per_host),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
    }
    path = [str(script.resolve().parent), *sys.path]
    with (
        mock.patch.dict(os.environ, variables),
        mock.patch.object(sys, "argv", [str(script), *arguments]),
        mock.patch.object(sys, "path", path),
    ):
        yield


@contextlib.contextmanager
def _replaced(recorder: Recorder) -> Iterator[None]:
    """What must not happen for real, replaced while the script runs."""
    swapped = torch.__future__.get_swap_module_params_on_conversion()
    with contextlib.ExitStack() as stack:
        handles = [*_optimizer_hooks(stack, recorder), _parameter_hook(recorder)]
        fake_group = _fake_group(recorder.recording)
        for module in (dist, dist.distributed_c10d, dist.device_mesh):  # each holds the name
            stack.enter_context(mock.patch.object(module, "init_process_group", fake_group))
        device_meshes.replace(stack, recorder.recording)
        stack.enter_context(_resizing(recorder))
        stand_ins.enter_all(stack)
        checkpoints.keep_from_disk(stack, recorder)
        stack.enter_context(swapped_tensors.data_assignable())
        stack.enter_context(mock.patch.object(torch.utils, "swap_tensors", _swapping(recorder)))
        stack.enter_context(mock.patch.object(torch.Tensor, "__deepcopy__", _copying(recorder)))
        ddp.replace(stack)
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            yield
        finally:
            torch.__future__.set_swap_module_params_on_conversion(swapped)
            for handle in handles:
                handle.remove()


def _fake_group(recording: Recording) -> Any:
    """An `init_process_group` of which every collective returns at once."""
    real = dist.init_process_group

    def init_process_group(*_: Any, **__: Any) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        if not dist.is_initialized():
            world = recording.world_size
            real("fake", store=FakeStore(), rank=recording.rank, world_size=world)
            plugins.collect("torchtpu_planned_process_group")

    return init_process_group


def _resizing(recorder: Recorder) -> Any:
    """Storages that FSDP resizes are followed."""
    real = torch.UntypedStorage.resize_

    def resize_(self: Any, size: int) -> Any:
        done = real(self, size)
        recorder.storages.resized(self, recorder._phase(), "")
        return done

    return mock.patch.object(torch.UntypedStorage, "resize_", resize_)


def _swapping(recorder: Recorder) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """``torch.utils.swap_tensors`` for modules that move to the device: parameters are known."""

    def swap(first: torch.Tensor, second: torch.Tensor) -> None:
        swapped_tensors.swap(first, second)
        if isinstance(first, nn.Parameter):
            _mark(recorder, first, Category.PARAMETERS)

    return swap


def _copying(recorder: Recorder) -> Callable[[torch.Tensor, dict[int, Any]], torch.Tensor]:
    """``copy.deepcopy`` of tensors: parameters, such as an average's, are not registered anew."""
    really_copy = torch.Tensor.__deepcopy__

    def copy(self: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
        copied: torch.Tensor = really_copy(self, memo)
        if isinstance(self, nn.Parameter):
            _mark(recorder, copied, Category.PARAMETERS)
        return copied

    return copy


def _optimizer_hooks(stack: contextlib.ExitStack, recorder: Recorder) -> list[Any]:
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    recording, steps = recorder.recording, Steps()
    really_make = torch.optim.Optimizer.__init__

    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        really_make(self, *args, **kwargs)
        steps.made(self)
        recording.optimizers += 1

    stack.enter_context(mock.patch.object(torch.optim.Optimizer, "__init__", make))

    def begin(optimizer: Any) -> None:
        name_gradients(recording)
        recorder.in_optimizer = True
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                _mark(recorder, parameter, Category.PARAMETERS)
                if parameter.grad is not None:
                    _mark(recorder, parameter.grad, Category.GRADIENTS)

    def before(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Of closures, as Lightning's loops step: they are no part of the optimizer's work."""
        begin(optimizer)

        def outside(value: Any) -> Any:
            return _between(recorder, begin, optimizer, value) if callable(value) else value

        step, *more = args
        return (step, *map(outside, more)), {name: outside(one) for name, one in kwargs.items()}

    def after(optimizer: Any, *_: Any) -> None:
        recorder.in_optimizer = False
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    _mark(recorder, value, Category.OPTIMIZER)
        enough = steps.done(optimizer, len(recording.ops))
        recording.step_ends = steps.ends()
        if enough:
            recorder.storages.close()
            raise _Enough

    return [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]


def _between(
    recorder: Recorder, begin: Callable[[Any], None], optimizer: Any, closure: Callable[..., Any]
) -> Callable[..., Any]:
    """A closure that an optimizer calls: what it does comes before the optimizer's work."""

    @functools.wraps(closure)
    def called(*args: Any, **kwargs: Any) -> Any:
        recorder.in_optimizer = False
        result = closure(*args, **kwargs)
        begin(optimizer)
        return result

    return called


def _parameter_hook(recorder: Recorder) -> Any:
    """Parameters of modules, for scripts without an optimizer."""

    def registered(_: nn.Module, __: str, parameter: Any) -> None:
        if isinstance(parameter, torch.Tensor):
            _mark(recorder, parameter, Category.PARAMETERS)

    return nn.modules.module.register_module_parameter_registration_hook(registered)


def _mark(recorder: Recorder, tensor: torch.Tensor, category: Category) -> None:
    """Marks the storage of a tensor, or of a distributed tensor's local part."""
    local = getattr(tensor, "_local_tensor", tensor)
    if local.device.type == "tpu":
        for part in sparse_shapes.parts([local]):
            recorder.storages.key(part, Phase.FORWARD, "")
            recorder.storages.mark(part, category)
