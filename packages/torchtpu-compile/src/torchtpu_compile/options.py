# SPDX-License-Identifier: Apache-2.0
"""The options of ``torch.compile(..., backend="tpu", options={...})``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from torchtpu_core.errors import did_you_mean

from torchtpu_compile.buckets import BucketPolicy
from torchtpu_compile.errors import CompileOptionError

#: Names that code for TPUs already passes; reserved until they have a meaning here.
NOT_SUPPORTED = frozenset({"async_compile", "serializable"})

#: Modes of `torch.compile`. They choose how hard Inductor tries; XLA always tries its best.
MODES = frozenset(
    {"default", "lite", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """Options of one `torch.compile`.

    Attributes:
        name: what the graph's programs are called in logs and profiles.
        num_dynamic_buckets: how many programs a graph with open sizes may have before sizes
            that repeat stop getting a program of their own.
        bucket_size: open sizes are padded to a multiple of this; None: to a power of two, or
            within 12.5 % for sizes that repeat.
        debug_callback: called with the name and the StableHLO text of each new program.
    """

    name: str = "graph"
    num_dynamic_buckets: int = 8
    bucket_size: int | None = None
    debug_callback: Callable[[str, str], None] | None = None

    def __post_init__(self) -> None:
        for option in ("num_dynamic_buckets", "bucket_size"):
            value = getattr(self, option)
            if value is not None and (type(value) is not int or value < 1):
                raise CompileOptionError(
                    f"option {option!r} is a whole number of at least 1, got {value!r}."
                )
        if self.debug_callback is not None and not callable(self.debug_callback):
            raise CompileOptionError(
                "option 'debug_callback' is a function of a program's name and its StableHLO, "
                f"got {self.debug_callback!r}."
            )
        if not isinstance(self.name, str) or not self.name:
            raise CompileOptionError(
                f"option 'name' is a non-empty string, got {self.name!r}. Example: "
                "torch.compile(model, backend='tpu', options={'name': 'decoder'})."
            )

    def policy(self) -> BucketPolicy:
        """A new policy of padded sizes."""
        return BucketPolicy(limit=self.num_dynamic_buckets, multiple=self.bucket_size)

    @classmethod
    def parse(cls, mode: str | None, options: Mapping[str, Any] | None) -> CompileOptions:
        """Options from what `torch.compile` passes on.

        Raises:
            CompileOptionError: an unknown or unsupported option, or an unknown mode.
        """
        supported = {field.name for field in fields(cls)}
        if mode is not None and mode not in MODES:
            raise CompileOptionError(
                f"torch.compile has no mode {mode!r}.{did_you_mean(mode, sorted(MODES))} "
                f"Known modes: {', '.join(sorted(MODES))}. On tpu all of them give the same "
                "program: XLA decides."
            )
        given = dict(options or {})
        for name in given:
            if name in NOT_SUPPORTED:
                raise CompileOptionError.not_supported(name, supported)
            if name not in supported:
                raise CompileOptionError.unknown(name, supported | NOT_SUPPORTED)
        return cls(**given)
