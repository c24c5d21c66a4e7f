# SPDX-License-Identifier: Apache-2.0
"""A plan as one page that needs no network: figures by Plotly, in light and dark."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from torchtpu_core.errors import MissingExtraError
from torchtpu_core.plan import figures
from torchtpu_core.plan.result import Plan, relative
from torchtpu_core.plan.terminal import counted, seconds
from torchtpu_core.plan.torus_figure import torus
from torchtpu_core.units import format_bytes

_FIGURES = (
    ("Timeline", "What the units of one device do in a step. Drag to zoom.", figures.timeline),
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
_TEMPLATE = Path(__file__).with_name("page.html")
LINES = 12
#: Cells with more letters are kept wide.
_LONG = 60


def write(plan: Plan, path: Path) -> None:
    """Writes the page.

    Raises:
        MissingExtraError: Plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingExtraError.for_extra("plan", "The page of a plan") from error
    sections, drawn = [], []
    shown = [one for one in _FIGURES if one[2] is not torus or plan.where.torus.chips > 1]
    for number, (title, caption, make) in enumerate(shown):
        sections.append(
            f'<section class="drawn"><h2>{title}</h2><p>{html.escape(caption)}</p>'
            f'<div id="figure{number}" class="figure"></div></section>'
        )
        drawn.append(make(plan))
    page = _TEMPLATE.read_text(encoding="utf-8")
    title = f"{Path(plan.recording.script).name} on {plan.where.name}"
    title += f" x {plan.slices} slices" if plan.slices > 1 else ""
    for mark, text in {
        "@TITLE@": html.escape(title),
        "@NOTE@": html.escape(_note(plan)),
        "@CARDS@": _cards(plan),
        "@TABLES@": _tables(plan),
        "@SECTIONS@": "\n".join(sections),
        "@FIGURES@": json.dumps(drawn).replace("</", "<\\/"),
        "@PLOTLY@": get_plotlyjs().replace("</script", "<\\/script"),
    }.items():
        page = page.replace(mark, text)
    path.write_text(page, encoding="utf-8")


def _note(plan: Plan) -> str:
    """What holds of the whole page."""
    note = "Every figure on this page is simulated: the script ran without values, as one rank "
    note += "for each role." if plan.roles else "that stands for all."
    shown = [role.name for role in plan.roles if role.plan is plan]
    note += f" Figures of one device are those of {shown[0]}, the slowest." if shown else ""
    if plan.faults:
        note += f" The slice has faults: {', '.join(plan.faults.described())}."
    return note


def _cards(plan: Plan) -> str:
    memory = plan.memory
    rate = []
    if plan.tokens_per_rank:
        rate = [("tokens/s", f"{plan.tokens_per_s:,.0f}", "simulated")]
    elif plan.samples_per_rank:
        rate = [("samples/s", f"{plan.samples_per_s:,.0f}", "simulated")]
    cards = [
        ("step", seconds(plan.step_s), "simulated"),
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
            seconds(plan.schedule.exposed_s),
            f"{seconds(plan.schedule.hidden_s)} hidden, simulated",
        ),
        (
            "chips",
            f"{plan.where.torus.chips * plan.slices:,}",
            f"{counted(plan.recording.world_size, 'rank')}, {counted(plan.slices, 'slice')}",
        ),
    ]
    return "\n".join(
        f'<div class="card"><span>{html.escape(name)}</span><b>{html.escape(value)}</b>'
        f"<small>{html.escape(note)}</small></div>"
        for name, value, note in cards
    )


def _cell(text: str) -> str:
    long = ' class="long"' if len(text) > _LONG else ""
    return f"<td{long}>{html.escape(text)}</td>"


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rows = list(rows)
    if not rows:
        return f"<section><h2>{html.escape(title)}</h2><p>Nothing here in this step.</p></section>"
    cells = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return (
        f"<section><h2>{html.escape(title)}</h2><table><thead><tr>{cells}</tr></thead>"
        f"<tbody>{body}</tbody></table></section>"
    )


def _tables(plan: Plan) -> str:
    advice = [
        (
            item.title,
            f"-{seconds(item.gain_s)} ({item.share})",
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
        (name, seconds(spent), f"{spent / step:.0%}")
        for name, spent in list(plan.schedule.critical.items())[:LINES]
    ]
    traffic = [
        (name, str(one.runs), format_bytes(int(one.sent_bytes)), seconds(one.seconds))
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
            seconds(role.end_s),
            f"{seconds(role.waits_s)} ({role.waits_s / step:.0%})",
            format_bytes(role.plan.memory.peak_bytes),
            "fits" if role.plan.memory.fits else "does not fit",
        )
        for role in plan.roles
    ]
    heads = ("ranks", "done at", "waits for others", "HBM at the peak", "")
    lines = [
        (relative(line), seconds(spent), f"{spent / step:.0%}")
        for line, spent in plan.slowest_lines(LINES)
    ]
    notes = [(note,) for note in plan.notes]
    return "\n".join(
        (
            *([_table("Roles (simulated)", heads, roles)] if roles else []),
            _table("What would help most (simulated)", ("change", "gain", "why", "lines"), advice),
            _table("Critical path (simulated)", ("part", "time", "of the step"), path),
            _table("Lines that take longest (simulated)", ("line", "time", "of the step"), lines),
            _table("HBM at the peak (simulated)", ("holds", "line", "size"), peak),
            _table(
                "Communication (simulated)",
                ("collective", "runs", "sent by a rank", "time"),
                traffic,
            ),
            _table(
                "Links (simulated)",
                ("along", "links, each direction", "busiest", "its bytes", "busy"),
                links,
            ),
            *(
                [_table("Notes", ("what the plan saw or took for granted",), notes)]
                if notes
                else []
            ),
        )
    )
