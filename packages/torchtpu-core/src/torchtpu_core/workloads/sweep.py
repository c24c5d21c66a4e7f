# SPDX-License-Identifier: Apache-2.0
"""Other ways to train a spec's model on the same chips, and how it scales.

A sweep tries sizes of the tensor, expert and context axes, batches and remat policies; its
front holds the choices that no other beats both in time per token and in memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from torchtpu_core.errors import MeshShapeError, TargetError
from torchtpu_core.hardware.registry import chips
from torchtpu_core.ici.slices import possible_shapes, shape_name
from torchtpu_core.workloads.memory import limit_bytes, memory_of
from torchtpu_core.workloads.meshes import slice_of
from torchtpu_core.workloads.prediction import StepPrediction
from torchtpu_core.workloads.remat import SWEPT_POLICIES
from torchtpu_core.workloads.spec import Parallel, Spec
from torchtpu_core.workloads.training import predict_step

TENSOR_SIZES = (1, 2, 4, 8, 16, 32)
BATCH_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
LARGEST_SCALE = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One way to train, with its simulated cost.

    Attributes:
        spec: the changed spec.
        step: its step.
        hbm_bytes: of a chip at the peak.
        fits: whether that is within the chip's limit.
    """

    spec: Spec
    step: StepPrediction
    hbm_bytes: float
    fits: bool

    @property
    def seconds_per_token(self) -> float:
        """Simulated, of all chips."""
        return self.step.step_s / self.step.tokens

    @property
    def name(self) -> str:
        """What distinguishes it."""
        parallel, train = self.spec.parallel, self.spec.train
        assert train is not None
        axes = {
            "tensor": parallel.tensor,
            "expert": parallel.expert,
            "context": parallel.context,
        }
        mesh = ", ".join(f"{name} {size}" for name, size in axes.items() if size > 1)
        policy = train.remat or f"keeping {', '.join(train.saved) or 'layer inputs'}"
        return f"{mesh or 'fsdp only'}; batch {train.batch_per_chip:g}; remat {policy}"


def choices(spec: Spec) -> Iterator[Choice]:
    """Every way that divides the slice."""
    model, train = spec.model, spec.train
    assert model is not None and train is not None
    where = slice_of(spec)
    count = where.torus.chips if where else 1
    tensors = [n for n in TENSOR_SIZES if count % n == 0 and model.heads % n == 0]
    most = model.experts.count if model.experts else 1
    experts = [n for n in (1, 4, 8, 16) if count % n == 0 and n <= most]
    policies = [train.remat, *(name for name in SWEPT_POLICIES if name != train.remat)]
    for tensor, expert, factor, policy in itertools.product(
        tensors, experts, BATCH_FACTORS, policies
    ):
        if count % (tensor * expert):
            continue
        changed = replace(
            spec,
            parallel=Parallel(tensor=tensor, expert=expert, context=spec.parallel.context),
            train=replace(
                train,
                batch_per_chip=train.batch_per_chip * factor,
                remat=policy,
                saved=train.saved if policy == train.remat else (),
                # What another policy keeps may be too much for the host's link.
                offload=train.offload and policy == train.remat,
            ),
        )
        try:
            hbm = sum(memory_of(changed).values())
            step = predict_step(changed)
        except MeshShapeError:
            continue
        yield Choice(spec=changed, step=step, hbm_bytes=hbm, fits=hbm <= limit_bytes(changed))


def front(found: Iterable[Choice]) -> list[Choice]:
    """Choices that fit and that no other beats in time per token and in memory."""
    best: list[Choice] = []
    smallest = math.inf
    for choice in sorted(found, key=lambda c: (c.seconds_per_token, c.hbm_bytes)):
        if choice.fits and choice.hbm_bytes < smallest:
            best.append(choice)
            smallest = choice.hbm_bytes
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A spec on another number of chips.

    Attributes:
        chips: chips of all slices.
        topology: of one slice.
        slices: how many.
        weak: the step with the spec's work per chip.
        strong: the step with the spec's work in all; None where a chip would get less than
            one token of each sequence it holds.
    """

    chips: int
    topology: str
    slices: int
    weak: StepPrediction
    strong: StepPrediction | None


def curve(spec: Spec, most: int = LARGEST_SCALE) -> list[Scale]:
    """Steps on one chip, on ever larger slices, and on ever more of the largest."""
    model, train = spec.model, spec.train
    assert model is not None and train is not None
    where = slice_of(spec)
    total = train.batch_per_chip * (where.torus.chips if where else 1) * spec.hardware.slices
    found = []
    for topology, slices in _sizes(spec, most):
        count = math.prod(map(int, topology.split("x"))) * slices
        hardware = replace(spec.hardware, topology=topology, slices=slices)
        own = math.prod(map(int, topology.split("x")))
        parallel = _dividing(spec.parallel, own)
        placed = replace(spec, hardware=hardware, parallel=parallel)
        share = total / count
        fixed = replace(placed, train=replace(train, batch_per_chip=share))
        strong = predict_step(fixed) if share * train.sequence >= 1 else None
        found.append(
            Scale(
                chips=count,
                topology=topology,
                slices=slices,
                weak=predict_step(placed),
                strong=strong,
            )
        )
    return found


def _sizes(spec: Spec, most: int) -> Iterator[tuple[str, int]]:
    """Slices of doubling size up to the largest, then several of it."""
    chip = chips().get(spec.hardware.chip)
    yield "x".join(["1"] * max(chip.ici_axes, 1)), 1
    compact: dict[int, tuple[int, ...]] = {}
    for shape in possible_shapes(chip):
        count = math.prod(shape)
        if count & (count - 1) == 0 and (count not in compact or sum(shape) < sum(compact[count])):
            compact[count] = shape
    sizes = sorted(count for count in compact if 1 < count <= most)
    for count in sizes:
        yield shape_name(compact[count]), 1
    slices = 2
    while sizes and sizes[-1] * slices <= most:
        yield shape_name(compact[sizes[-1]]), slices
        slices *= 2
    if sizes and sizes[-1] * slices // 2 < most:
        yield shape_name(compact[sizes[-1]]), most // sizes[-1]


def _dividing(parallel: Parallel, count: int) -> Parallel:
    """The axes that divide a number of chips; the rest is data parallel."""
    kept = {}
    for name in ("tensor", "context", "expert", "pipeline"):
        size = math.gcd(getattr(parallel, name), count)
        kept[name] = size
        count //= size
    return Parallel(**kept, microbatches=parallel.microbatches)


def check(spec: Spec) -> None:
    """Refuses a spec that is not a training run.

    Raises:
        TargetError: it is not.
    """
    if spec.train is None or spec.model is None:
        raise TargetError("A sweep needs a spec with [model] and [train] tables.")
