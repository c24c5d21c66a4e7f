# SPDX-License-Identifier: Apache-2.0
"""The target this process runs on, chosen once, before the first use of the device."""

from __future__ import annotations

from dataclasses import dataclass

from torchtpu_core import plugins
from torchtpu_core.errors import TargetError
from torchtpu_core.hardware.chip import Chip
from torchtpu_core.targets import Target, TargetKind, resolve_target


@dataclass(frozen=True, slots=True)
class CurrentTarget:
    """A target and how many of its devices this process has."""

    target: Target
    device_count: int

    @property
    def name(self) -> str:
        """The target's name, such as ``v5e:2x2``."""
        return self.target.name

    @property
    def simulated(self) -> bool:
        """Whether times and memory limits come from a model."""
        return self.target.simulated

    @property
    def chip(self) -> Chip | None:
        """The chip of a simulated target."""
        return self.target.chip


_current: CurrentTarget | None = None


def target() -> CurrentTarget:
    """The current target; resolved from ``TORCH_TPU_TARGET`` at first use."""
    global _current
    if _current is None:
        _current = _resolve(None)
    return _current


def set_target(name: str) -> None:
    """Choose the target by name, before the device is first used.

    Args:
        name: ``cpu``, ``tpu`` or a simulated slice such as ``v5e:2x2``.

    Raises:
        TargetError: the name is no target, or the device is already in use.
    """
    global _current
    from torchtpu_core import _C

    chosen = _resolve(name)
    if _current is not None and (_C.is_started() or _C.device_count() != chosen.device_count):
        raise TargetError(
            f"the target is already {_current.name!r} and the device has been used. Call "
            f"set_target({name!r}) before the first tpu tensor or torch.tpu call, or set "
            f"TORCH_TPU_TARGET={name} before starting Python."
        )
    _current = chosen


def _resolve(name: str | None) -> CurrentTarget:
    try:
        resolved = resolve_target(name)
    except TargetError:
        plugins.manager()  # a plugin may bring the chip
        resolved = resolve_target(name)
    count = resolved.local_devices
    if count is None:
        from torchtpu_core.runtime.clients import real_tpu_device_count

        count = real_tpu_device_count()
    return CurrentTarget(resolved, count)


__all__ = ["CurrentTarget", "TargetKind", "set_target", "target"]
