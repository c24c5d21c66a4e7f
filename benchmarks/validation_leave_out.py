# SPDX-License-Identifier: Apache-2.0
"""Are the step model's constants overfitted? Fits them without a group, then predicts it.

For each group of configurations (dense models or mixtures of experts on one chip, or MLPerf)
the constants marked `assumed` are fitted to all other groups by a coordinate search on
the mean absolute logarithm of predicted over published, and the group left out is
predicted. Prints both errors side by side and writes them as JSON.

    python benchmarks/validation_leave_out.py benchmarks/results/validation_leave_out.json
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from torchtpu_core.hardware.sourced import Sourced, Status
from torchtpu_core.simulator import calibration
from torchtpu_core.validation import read_rows
from torchtpu_core.validation.predict import predict
from torchtpu_core.workloads import Spec, read_specs

HERE = Path(__file__).parent / "validation"
STEPS = (0.6, 0.8, 0.9, 1.1, 1.25, 1.6)
ROUNDS = 2
Point = tuple[Spec, str, str, float]


def points() -> dict[str, list[Point]]:
    """One published figure of each configuration, by group."""
    specs = read_specs(HERE / "specs")
    groups: dict[str, list[Point]] = defaultdict(list)
    seen: set[int] = set()
    for row in read_rows(HERE / "rows.csv"):
        spec = specs[row.spec]
        if id(spec) in seen or spec.unmodelled or spec.train is None or spec.model is None:
            continue
        seen.add(id(spec))
        group = f"{'experts' if spec.model.experts else 'dense'} {row.chip}"
        if spec.benchmark is not None:
            group = "MLPerf GPT-3"
        groups[group].append((spec, row.metric, row.unit, row.value))
    return groups


def errors(chosen: Iterable[Point]) -> list[float]:
    """Absolute logarithms of predicted over published."""
    return [abs(math.log(predict(s, m, u) / v)) for s, m, u, v in chosen]


def fitted_names() -> list[str]:
    """The constants that were chosen, not measured; that of DCN has a row of its own."""
    return [
        name
        for name, value in vars(calibration).items()
        if isinstance(value, Sourced) and value.status is Status.ASSUMED and "DCN" not in name
    ]


def fit(chosen: list[Point]) -> dict[str, float]:
    """Constants by coordinate search from their present values; leaves them set."""
    best = statistics.fmean(errors(chosen))
    for _ in range(ROUNDS):
        for name in fitted_names():
            start = getattr(calibration, name)
            kept = start
            for step in STEPS:
                setattr(calibration, name, Sourced(start.value * step, "fit", Status.ASSUMED))
                score = statistics.fmean(errors(chosen))
                if score < best - 1e-6:
                    best, kept = score, getattr(calibration, name)
            setattr(calibration, name, kept)
    return {name: getattr(calibration, name).value for name in fitted_names()}


def main(out: Path) -> None:
    """Every group in turn."""
    groups = points()
    shipped = {name: getattr(calibration, name) for name in fitted_names()}
    rows = []
    for group, held in groups.items():
        others = [point for name, listed in groups.items() if name != group for point in listed]
        with_all = statistics.median(errors(held))
        constants = fit(others)
        without = errors(held)
        rows.append(
            {
                "group": group,
                "configurations": len(held),
                "median_error_shipped_constants": round(math.expm1(with_all), 4),
                "median_error_fitted_without_it": round(math.expm1(statistics.median(without)), 4),
                "largest_error_fitted_without_it": round(math.expm1(max(without)), 4),
                "constants": {name: round(value, 4) for name, value in constants.items()},
            }
        )
        print(rows[-1])
        for name, value in shipped.items():
            setattr(calibration, name, value)
    out.write_text(json.dumps({"simulated": True, "groups": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
