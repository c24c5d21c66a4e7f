# SPDX-License-Identifier: Apache-2.0
"""Predictions beside published figures, and how far apart they are.

The error of a row is ``predicted / published - 1``; figures of merit use its
magnitude. Rows of one configuration (a spec) are one measurement told several ways,
so the figures are given by row and by configuration.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchtpu_core.errors import TorchTPUError, did_you_mean
from torchtpu_core.validation.metrics import NotModelledError, RowError, check_size
from torchtpu_core.validation.predict import predict
from torchtpu_core.validation.rows import Row
from torchtpu_core.workloads.spec import Spec
from torchtpu_core.workloads.spec_files import MistakenSpec

CLOSE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One row with its prediction.

    Attributes:
        row: what was published.
        predicted: the simulated value in the row's unit, None if not modelled.
        reason: why there is none.
        mistake: the reason is one of the row or its spec, not that the model lacks something.
        configuration: rows with the same one share a spec.
    """

    row: Row
    predicted: float | None = None
    reason: str = ""
    mistake: bool = False
    configuration: str = ""

    @property
    def error(self) -> float | None:
        """Relative error, positive if the prediction is too large."""
        return None if self.predicted is None else self.predicted / self.row.value - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Figures of merit of a list of errors.

    Attributes:
        count: how many there are.
        median: of the magnitudes.
        worst: the largest magnitude.
        within: part of them within 25 %.
    """

    count: int
    median: float
    worst: float
    within: float

    @classmethod
    def of(cls, errors: Sequence[float]) -> Summary:
        """The figures of some errors."""
        if not errors:
            return cls(count=0, median=0.0, worst=0.0, within=0.0)
        sizes = [abs(error) for error in errors]
        return cls(
            count=len(sizes),
            median=statistics.median(sizes),
            worst=max(sizes),
            within=sum(size <= CLOSE for size in sizes) / len(sizes),
        )


def compare(rows: Sequence[Row], specs: Mapping[str, Spec]) -> list[Comparison]:
    """Every row with its prediction or the reason why there is none."""
    names: dict[int, str] = {}
    found = []
    for row in rows:
        spec = specs.get(row.spec)
        if row.mistake:
            reason = f"{row.place}: {row.mistake}"
            found.append(Comparison(row=row, reason=reason, mistake=True))
        elif spec is None:
            reason = f"no spec file lists this row.{did_you_mean(row.spec, specs)}"
            found.append(Comparison(row=row, reason=reason))
        else:
            found.append(_compared(row, spec, names.setdefault(id(spec), row.id)))
    return found


def _compared(row: Row, spec: Spec, configuration: str) -> Comparison:
    """A row beside the prediction of its spec, or the reason why there is none."""
    mistake = isinstance(spec, MistakenSpec)
    try:
        value = predict(spec, row.metric, row.unit)
        check_size(row.metric, row.unit, row.value)
        if not math.isfinite(value):
            raise OverflowError(f"a prediction of {value}")
    except RowError as error:
        reason, mistake = f"{row.place}: row {row.id!r}, {error}", True
    except NotModelledError as error:
        reason = str(error)
    except TorchTPUError as error:
        reason, mistake = str(error), True
    except ArithmeticError as error:
        reason = f"the numbers of its spec are beyond what can be computed: {error}"
        mistake = True
    else:
        return Comparison(row=row, predicted=value, configuration=configuration)
    return Comparison(row=row, reason=reason, mistake=mistake, configuration=configuration)


def lost_specs(rows: Sequence[Row], specs: Mapping[str, Spec]) -> list[MistakenSpec]:
    """Files with a mistake that serve none of the rows, as far as can be read."""
    asked = {id(specs[row.spec]) for row in rows if row.spec in specs}
    wrong = {id(s): s for s in specs.values() if isinstance(s, MistakenSpec)}
    return [spec for key, spec in wrong.items() if key not in asked]


def by_row(found: Sequence[Comparison]) -> Summary:
    """Figures over rows."""
    return Summary.of([item.error for item in found if item.error is not None])


def by_configuration(found: Sequence[Comparison]) -> Summary:
    """Figures over configurations, each with the median error of its rows."""
    groups: dict[str, list[float]] = {}
    for item in found:
        if item.error is not None:
            groups.setdefault(item.configuration, []).append(abs(item.error))
    return Summary.of([statistics.median(errors) for errors in groups.values()])
