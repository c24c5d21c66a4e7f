# SPDX-License-Identifier: Apache-2.0
"""A plan as one page that needs no network."""

from __future__ import annotations

from pathlib import Path

from torchtpu_core.plan import figures
from torchtpu_core.plan.result import Plan, relative
from torchtpu_core.plan.terminal import counted
from torchtpu_core.plan.torus_figure import torus
from torchtpu_core.reports import page
from torchtpu_core.reports.page import Card, Drawing, Page, Table
from torchtpu_core.units import format_bytes, format_seconds

_FIGURES = (
    ("Timeline", "What the units of one device do in a step. Drag to zoom.", figures.timeline),
    (
        "Ranks",
        "The TensorCore of one rank of each role. In gaps it waits for other ranks or the network.",
        figures.cores,
    ),
    (
        "Roofline",
        "Products and attention under the device's roofs; larger marks take more time.",
        figures.roofline,
    ),
    (
        "Memory",
        "HBM of one device over the step; a limit far above the peak is not drawn.",
        figures.memory,
    ),
    (
        "Torus",
        "Load of every link of one slice: part of the step in which it carries bytes, in the "
        "busier direction. Drag to turn; short stubs are wrap-around links.",
        torus,
    ),
)
LINES = 12


def write(plan: Plan, path: Path) -> None:
    """Writes the page.

    Raises:
        MissingExtraError: Plotly is not installed.
    """
    left_out = [torus] * (plan.where.torus.chips == 1) + [figures.cores] * (not plan.roles)
    shown = [one for one in _FIGURES if one[2] not in left_out]
    title = f"{Path(plan.recording.script).name} on {plan.where.name}"
    title += f" x {plan.slices} slices" if plan.slices > 1 else ""
    content = Page(
        title=title,
        note=_note(plan),
        cards=_cards(plan),
        drawings=[Drawing(title, caption, make(plan)) for title, caption, make in shown],
        tables=_tables(plan),
    )
    page.write(content, path, "The page of a plan")


def _note(plan: Plan) -> str:
    """What holds of the whole page."""
    note = "Every figure on this page is simulated: the script ran without values, as one rank "
    note += "for each role." if plan.roles else "that stands for all."
    shown = [role.name for role in plan.roles if role.plan is plan]
    note += f" Figures of one device are those of {shown[0]}, the slowest." if shown else ""
    if plan.compiler_report:
        note += " Fusion, schedule and memory are those of XLA's TPU compiler."
    if plan.faults:
        note += f" The slice has faults: {', '.join(plan.faults.described())}."
    return note


def _cards(plan: Plan) -> list[Card]:
    memory = plan.memory
    rate = []
    if plan.tokens_per_rank:
        rate = [("tokens/s", f"{plan.tokens_per_s:,.0f}", "simulated")]
    elif plan.samples_per_rank:
        rate = [("samples/s", f"{plan.samples_per_s:,.0f}", "simulated")]
    cards = [
        ("step", format_seconds(plan.step_s), "simulated"),
        *rate,
        ("MFU", f"{plan.mfu:.1%}", f"HFU {plan.hfu:.1%}, simulated"),
        (
            "HBM peak",
            format_bytes(memory.peak_bytes),
            f"of {format_bytes(memory.limit_bytes)}: "
            f"{'fits' if memory.fits else 'does not fit'}, simulated",
        ),
        (
            "exposed communication",
            format_seconds(plan.schedule.exposed_s),
            f"{format_seconds(plan.schedule.hidden_s)} hidden, simulated",
        ),
        (
            "chips",
            f"{plan.where.torus.chips * plan.slices:,}",
            f"{counted(plan.recording.world_size, 'rank')}, {counted(plan.slices, 'slice')}",
        ),
    ]
    return [Card(*card) for card in cards]


def _tables(plan: Plan) -> list[Table]:
    advice = [
        (
            item.title,
            f"-{format_seconds(item.gain_s)} ({item.share})",
            item.why,
            ", ".join(map(relative, item.lines)),
        )
        for item in plan.advice[:6]
    ]
    peak = [
        (str(category), relative(line) or "-", format_bytes(size))
        for category, line, size in plan.memory.lines[:LINES]
    ]
    step = max(plan.step_s, 1e-30)
    path = [
        (name, format_seconds(spent), f"{spent / step:.0%}")
        for name, spent in list(plan.schedule.critical.items())[:LINES]
    ]
    traffic = [
        (name, str(one.runs), format_bytes(int(one.sent_bytes)), format_seconds(one.seconds))
        for name, one in plan.by_collective().items()
    ]
    links = [
        (
            link.name,
            f"{link.count:,}",
            link.which,
            format_bytes(int(link.sent_bytes)),
            f"{link.load:.0%}",
        )
        for link in plan.schedule.links
    ]
    roles = [
        (
            role.name,
            format_seconds(role.end_s),
            f"{format_seconds(role.waits_s)} ({role.waits_s / step:.0%})",
            format_bytes(role.plan.memory.peak_bytes),
            "fits" if role.plan.memory.fits else "does not fit",
        )
        for role in plan.roles
    ]
    heads = ("ranks", "done at", "waits for others", "HBM at the peak", "")
    lines = [
        (relative(line), format_seconds(spent), f"{spent / step:.0%}")
        for line, spent in plan.slowest_lines(LINES)
    ]
    notes = [(note,) for note in plan.notes]
    heads_of_links = ("along", "links, each direction", "busiest", "its bytes", "busy")
    tables = [
        Table("What would help most (simulated)", ("change", "gain", "why", "lines"), advice),
        Table("Critical path (simulated)", ("part", "time", "of the step"), path),
        Table("Lines that take longest (simulated)", ("line", "time", "of the step"), lines),
        Table("HBM at the peak (simulated)", ("holds", "line", "size"), peak),
        Table(
            "Communication (simulated)", ("collective", "runs", "sent by a rank", "time"), traffic
        ),
        Table("Links (simulated)", heads_of_links, links),
    ]
    if roles:
        tables.insert(0, Table("Roles (simulated)", heads, roles))
    if notes:
        tables.append(Table("Notes", ("what the plan saw or took for granted",), notes))
    return tables
