# SPDX-License-Identifier: Apache-2.0
"""What Debug mode looks for, and which choice is in force."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from torchtpu_core.errors import TorchTPUError, did_you_mean


class DebugOptionError(TorchTPUError, TypeError, ValueError):
    """An option that `torch.tpu.debug` does not have, or a value it does not take.

    Fix: use one of the options in the message.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class DebugOptions:
    """Options of `torch.tpu.debug`.

    Attributes:
        nonfinite: raise at the first op that makes NaN, or infinity out of finite operands.
        indices: check index operands on the host before each op, and name the offending value.
        compare: run each op on the CPU too, and raise at the first that differs beyond the
            tolerance of its dtype.
        memory: when the device is out of memory, list the largest live tensors and the
            lines that made them.
    """

    nonfinite: bool = True
    indices: bool = True
    compare: bool = False
    memory: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, bool):
                raise DebugOptionError(
                    f"torch.tpu.debug({field.name}={value!r}) is not allowed: "
                    f"{field.name} is True or False."
                )


#: What `torch.tpu.set_eager_mode("debug")` does: run and wait op by op, nothing dearer.
PLAIN = DebugOptions(nonfinite=False, indices=False, compare=False, memory=True)

_chosen: list[DebugOptions] = [PLAIN]


def parse(options: dict[str, Any]) -> DebugOptions:
    """Options from keywords.

    Raises:
        DebugOptionError: an unknown option, or a value that is not a bool.
    """
    known = {field.name: field.default for field in fields(DebugOptions)}
    for name in options:
        if name not in known:
            listing = ", ".join(f"{option}={default}" for option, default in known.items())
            raise DebugOptionError(
                f"torch.tpu.debug has no option {name!r}.{did_you_mean(name, known)} "
                f"Options and their defaults: {listing}."
            )
    return DebugOptions(**options)


def current() -> DebugOptions:
    """The innermost choice."""
    return _chosen[-1]


def push(options: DebugOptions) -> None:
    """Make a choice; undone by `pop`."""
    _chosen.append(options)


def pop() -> None:
    """Undo the last choice."""
    _chosen.pop()
