# SPDX-License-Identifier: Apache-2.0
"""Random generators: one per device, a counter (seed, offset) of 16 bytes.

They are independent of the CPU's generator; `torch.manual_seed` seeds all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import torch
from torch._guards import TracingContext

from torchtpu_core import _C
from torchtpu_core.tpu.devices import Device, device_count, index_of


class _DefaultGenerators(Sequence[torch.Generator]):
    """The default generator of each device; made when first asked for."""

    def __len__(self) -> int:
        return device_count()

    def __iter__(self) -> Iterator[torch.Generator]:
        return (self[i] for i in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> torch.Generator: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[torch.Generator]: ...
    def __getitem__(self, index: int | slice) -> torch.Generator | Sequence[torch.Generator]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return _C.default_generator(index_of(index))


default_generators = _DefaultGenerators()


def get_rng_state(device: Device = None) -> torch.Tensor:
    """State of a device's generator, `(16,)` uint8 on the CPU: seed, then offset.

    Raises:
        UnsupportedFakeTensorException: torch.compile traces, as it does random operators of
            DTensors, which read and set the state. Their graph breaks there.
    """
    _refuse_traced()
    return default_generators[index_of(device)].get_state()


def _refuse_traced() -> None:
    """A state read now would be a constant of the graph."""
    fake = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    if fake is not None and TracingContext.try_get() is not None:
        from torch._subclasses.fake_tensor import UnsupportedFakeTensorException

        raise UnsupportedFakeTensorException(
            "the state of the tpu's random generator is not known while torch.compile traces. "
            "Random operators of DTensors run outside of graphs: compile without fullgraph=True, "
            "or draw on local tensors"
        )


def set_rng_state(new_state: torch.Tensor, device: Device = None) -> None:
    """Restore a state that `get_rng_state` gave."""
    default_generators[index_of(device)].set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices' generators."""
    return [get_rng_state(i) for i in range(device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Restore the states of all devices' generators."""
    for i, state in enumerate(new_states):
        set_rng_state(state, i)


def manual_seed(seed: int) -> None:
    """Seed the current device's generator."""
    default_generators[index_of(None)].manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed every device's generator."""
    for generator in default_generators:
        generator.manual_seed(int(seed))


def seed() -> None:
    """Seed the current device's generator from the system."""
    default_generators[index_of(None)].seed()


def seed_all() -> None:
    """Seed every device's generator with one number from the system."""
    value = default_generators[0].seed()
    manual_seed_all(value)


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return default_generators[index_of(None)].initial_seed()
