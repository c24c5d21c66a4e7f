# SPDX-License-Identifier: Apache-2.0
"""Fused Eager: recorded ops run as larger programs, found and compiled on the way.

The mechanism is in core (`csrc/journal.h`, `csrc/trace.cpp`): ops are recorded until the
script itself stops, at a host read, a synchronisation, an event or an optimizer step. A
stream of ops that was met before gets a program of its own, compiled in the background;
until it is there, and for streams that never come back, ops run one by one as in
Strict. Here are the settings, and the one boundary that core cannot see: the end of
an optimizer's step.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torchtpu_core import execution
from torchtpu_core.env_vars import settings


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionOptions:
    """How Fused Eager decides.

    Attributes:
        background: compile on a thread of its own while ops run one by one; else the script
            waits for the compiler.
        sightings: how often a stream of ops must have been met before it is compiled, at least,
            as those that seldom come wait longer; 0 compiles each at once.
        at_first_sight: operators in a stream that is compiled at once although it is new, if
            most of them have no program of their own: one is soon made; 0: none.
        patience: unknown streams in a row after which ops run when they are called, until
            a stream repeats.
        max_ops: operators in one program.
        max_held_bytes: device memory that only recorded, unfinished work may hold.
    """

    background: bool = True
    sightings: int = 1
    at_first_sight: int = 16
    patience: int = 3
    max_ops: int = 4096
    max_held_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        for name, least in (
            ("sightings", 0),
            ("at_first_sight", 0),
            ("patience", 1),
            ("max_ops", 1),
            ("max_held_bytes", 0),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)} is not allowed: at least {least}.")


_options: FusionOptions | None = None
_hooked = False


def options() -> FusionOptions:
    """The options in force."""
    return _options or FusionOptions(background=settings().fused_background)


def configure(**changes: Any) -> FusionOptions:
    """Change some of `FusionOptions`; returns what was in force before.

    Args:
        **changes: fields of `FusionOptions` and their new values.

    Raises:
        TypeError: there is no such option.
        ValueError: a value is not allowed.
    """
    global _options
    before = options()
    known = [field.name for field in fields(FusionOptions)]
    unknown = set(changes) - set(known)
    if unknown:
        raise TypeError(
            f"{', '.join(sorted(unknown))} is not an option of Fused Eager. "
            f"Options: {', '.join(known)}."
        )
    _options = replace(before, **changes)
    _apply()
    return before


def enter() -> None:
    """Fused Eager comes into force."""
    global _hooked
    if not _hooked:
        _hooked = True
        register_optimizer_step_post_hook(_after_optimizer_step)
    _apply()


def _apply() -> None:
    execution.set_fusion_policy(**asdict(options()))


def _after_optimizer_step(*_: Any) -> None:
    if not torch.compiler.is_compiling():  # a graph that Dynamo captures would break here
        execution.optimizer_stepped()
