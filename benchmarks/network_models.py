# SPDX-License-Identifier: Apache-2.0
"""Host time of the network models on 9,216 chips: one all-reduce of 1 GB.

    python benchmarks/network_models.py

The link-level model simulates chips that see the same once; "every flow" keeps all 55,296
flows of a round apart. With faults few chips or none see the same. Wall time and processor
time of this process: on a busy machine the second is the steadier one. Nothing is kept from
one repeat to the next but the torus.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

from _measure import Spread, save
from rich.console import Console
from rich.table import Table
from torchtpu_core.ici import CollectiveKind, Faults, Network, parse_slice, whole
from torchtpu_core.ici.closed_form import ClosedForm
from torchtpu_core.ici.link_level import LinkLevel

TARGET = "tpu7x:16x24x24"
ARRAY_BYTES = 10**9


FAULTS = {
    "a cable slow": Faults(cables_slow={(0, 1): 0.5}),
    "a cable down": Faults(cables_down=frozenset({(0, 1)})),
    "a chip slow": Faults(chips_slow={0: 0.5}),
    "a chip 1 ms late": Faults(chips_late={0: 10**9}),
    "three faults": Faults(
        chips_slow={77: 0.3},
        cables_down=frozenset({(1000, 1001)}),
        cables_slow={(500, 501): 0.7},
    ),
}


def candidates(network: Network) -> dict[str, tuple[Callable[[], int], int]]:
    """Name to (a call that gives the simulated time, how often to repeat it)."""
    span = whole(network)

    def call(model: ClosedForm | LinkLevel) -> Callable[[], int]:
        kind = CollectiveKind.ALL_REDUCE
        return lambda: model.collective_time(kind, ARRAY_BYTES, span).time_ps

    faulty = {
        f"link level, {name}": (call(LinkLevel(replace(network, faults=faults))), 3)
        for name, faults in FAULTS.items()
    }
    return {
        "closed form": (call(ClosedForm(network)), 200),
        "link level": (call(LinkLevel(network)), 20),
        "link level, every flow": (call(LinkLevel(network, symmetric=False)), 3),
        **faulty,
    }


def measure(repeats: int) -> dict[str, dict[str, object]]:
    """Per model: milliseconds of wall and processor time, and the simulated time."""
    network = Network.of(parse_slice(TARGET))
    figures: dict[str, dict[str, object]] = {}
    for name, (call, usual) in candidates(network).items():
        wall, cpu, simulated_ps = [], [], call()
        for _ in range(repeats or usual):
            began, began_cpu = time.perf_counter(), time.process_time()
            call()
            cpu.append((time.process_time() - began_cpu) * 1e3)
            wall.append((time.perf_counter() - began) * 1e3)
        figures[name] = {
            "wall_ms": str(Spread.of(wall)),
            "processor_ms": str(Spread.of(cpu)),
            "repeats": repeats or usual,
            "simulated_ms": simulated_ps / 1e9,
        }
    return figures


def main() -> None:
    """Measure, print a table, save the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--no-save", action="store_true")
    args = parser.parse_args()
    figures = measure(args.repeats)
    title = f"all-reduce of {ARRAY_BYTES:,} bytes on {TARGET}; ms, median (min to max)"
    table = Table(title=title)
    for column in ("model", "wall", "processor", "simulated time"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name, row in figures.items():
        simulated = f"{row['simulated_ms']:.3f} ms (simulated)"
        table.add_row(name, str(row["wall_ms"]), str(row["processor_ms"]), simulated)
    Console().print(table)
    if not args.no_save:
        print(f"saved to {save('network_models', figures).name}")


if __name__ == "__main__":
    main()
