# SPDX-License-Identifier: Apache-2.0
"""The options of ``torch.compile(..., backend="tpu", options={...})``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from torchtpu_core.errors import did_you_mean

from torchtpu_compile.errors import CompileOptionError

#: Names that code for TPUs already passes; reserved until they have a meaning here.
NOT_SUPPORTED = frozenset(
    {"async_compile", "num_dynamic_buckets", "bucket_size", "serializable", "debug_callback"}
)

#: Modes of `torch.compile`. They choose how hard Inductor tries; XLA always tries its best.
MODES = frozenset({"default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """Options of one `torch.compile`.

    Attributes:
        name: what the graph's programs are called in logs and profiles.
    """

    name: str = "graph"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise CompileOptionError(
                f"option 'name' is a non-empty string, got {self.name!r}. Example: "
                "torch.compile(model, backend='tpu', options={'name': 'decoder'})."
            )

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
