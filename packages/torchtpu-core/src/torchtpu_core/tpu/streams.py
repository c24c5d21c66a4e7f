# SPDX-License-Identifier: Apache-2.0
"""Streams and events: torch's own classes with `tpu` as their device.

Work of one device runs in the order it was issued, whatever its stream. On a
simulated target each stream has its own clock, and events read simulated time.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from torchtpu_core.tpu.devices import Device, index_of
from torchtpu_core.units import seconds_to_ps


class _OfDevice(type):
    """Kind of a class that makes objects of one of torch's, which are its instances by device."""

    made: type

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.made) and instance.device.type == "tpu"  # type: ignore[attr-defined]


class Stream(metaclass=_OfDevice):
    """A queue of work on a device; makes a `torch.Stream`, which compiled code knows.

    Args:
        device: the device; the current one by default.
        priority: accepted for CUDA's sake; all streams are equal.
        kwargs: `stream_id`, `device_index` and `device_type` of a stream that there is.
    """

    made = torch.Stream

    def __new__(  # type: ignore[misc]  # torch's own class, see above
        cls, device: Device = None, priority: int = 0, **kwargs: Any
    ) -> torch.Stream:
        if "stream_id" in kwargs:
            return torch.Stream(priority=priority, **kwargs)
        place = "tpu" if device is None else torch.device("tpu", index_of(device))
        return torch.Stream(device=place, priority=priority, **kwargs)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Least and greatest priority: one and the same."""
        return 0, 0


class Event(metaclass=_OfDevice):
    """A point in a stream's work; makes a `torch.Event`, which cannot be subclassed usefully:
    `elapsed_time` refuses instances of subclasses.

    Args:
        enable_timing: whether `elapsed_time` will be asked; on a simulated target it
            gives simulated milliseconds.
        blocking: accepted for CUDA's sake.
        interprocess: events cannot be shared between processes.
    """

    made = torch.Event

    def __new__(  # type: ignore[misc]  # torch's own class, see above
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event:
        return torch.Event(
            device="tpu",
            enable_timing=enable_timing,
            blocking=blocking,
            interprocess=interprocess,
        )


def current_stream(device: Device = None) -> torch.Stream:
    """The stream on which this thread issues work for a device."""
    return torch.accelerator.current_stream(index_of(device))


def default_stream(device: Device = None) -> torch.Stream:
    """The stream a device starts with."""
    return torch.Stream(stream_id=0, device_index=index_of(device), device_type=_DEVICE_TYPE)


_DEVICE_TYPE = 20  # c10::DeviceType::PrivateUse1


def set_stream(stream: torch.Stream | None) -> None:
    """Issue this thread's work on a stream; None does nothing."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


def _sleep(cycles: int) -> None:
    """Occupy the current stream for some cycles of the chip's clock, in simulated time.

    PyTorch's tests delay a device by `torch.cuda._sleep`. The host is not delayed.

    Args:
        cycles: of the TensorCore's clock.

    Raises:
        NotImplementedError: the target has no chip model; XLA has no operator that waits.
    """
    from torchtpu_core import _C
    from torchtpu_core.runtime.current import target

    device, chip = index_of(None), target().chip
    if chip is None:
        raise NotImplementedError(
            f"torch.tpu._sleep() passes simulated time, and the target {target().name!r} has none: "
            "use a simulated one, such as v5e:2x2, or an operator that takes as long."
        )
    _C.flush()  # what was called before comes before it
    _C.add_device_time(device, seconds_to_ps(cycles / chip.figure("clock_hz")))


def is_current_stream_capturing() -> bool:
    """Whether a CUDA graph is being captured: never, there are none."""
    return False


class StreamContext:
    """Context manager that issues work on a stream and restores the previous one."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self.previous: tuple[torch.Stream, torch.Stream] | None = None

    def __enter__(self) -> None:
        if self.stream is not None:
            on_device = current_stream(self.stream.device)
            self.previous = (current_stream(), on_device)
            set_stream(self.stream)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.previous is not None:
            before, on_device = self.previous
            set_stream(on_device)
            set_stream(before)


def stream(stream: torch.Stream | None) -> StreamContext:
    """``with torch.tpu.stream(s):`` issues the block's work on `s`."""
    return StreamContext(stream)
