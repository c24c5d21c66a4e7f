# SPDX-License-Identifier: Apache-2.0
"""Sweeps and scaling curves of specs, and the front of choices."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from torchtpu_core.cli.app import make_app
from torchtpu_core.errors import PlanError
from torchtpu_core.plan.script_sweep import Tried, options_of
from torchtpu_core.plan.script_sweep import front as front_of_scripts
from torchtpu_core.reports.choices import Point, write
from torchtpu_core.reports.scaling import efficiency
from torchtpu_core.units import GIB
from torchtpu_core.workloads.memory import limit_bytes, memory_of
from torchtpu_core.workloads.spec import Hardware, Model, Spec, Train
from torchtpu_core.workloads.sweep import choices, curve, front
from typer.testing import CliRunner

MODEL = Model(layers=8, emb=4096, heads=32, kv_heads=8, mlp=14336, vocab=32000)
SPEC = Spec(
    hardware=Hardware(chip="v5e", topology="4x4"),
    model=MODEL,
    train=Train(batch_per_chip=1, sequence=4096),
)
#: The same in a file, smaller.
TABLES = {
    "hardware": {"chip": "v5e", "topology": "2x2"},
    "model": {"layers": 2, "emb": 512, "heads": 4, "mlp": 2048},
    "train": {"batch_per_chip": 1, "sequence": 512},
}


def test_memory_of_state_is_sixteen_bytes_per_parameter_over_the_chips() -> None:
    found = memory_of(SPEC)
    layer = 4096 * 48 * 128 + 4096 * 4096 + 3 * 4096 * 14336
    parameters = 8 * layer + 2 * 32000 * 4096
    state = sum(found[name] for name in ("parameters", "gradients", "optimizer state"))
    assert state == pytest.approx(16 * parameters / 16)
    assert found["activations"] == 8 * 4096 * 4096 * 2


def test_front_holds_choices_that_fit_and_that_none_beats() -> None:
    found = list(choices(SPEC))
    best = front(found)
    assert best
    for choice in best:
        assert choice.hbm_bytes <= limit_bytes(SPEC)
        assert not any(
            other.fits
            and other.seconds_per_token < choice.seconds_per_token
            and other.hbm_bytes < choice.hbm_bytes
            for other in found
        )


def test_curve_reaches_100_000_chips_and_never_gains_efficiency_with_slices() -> None:
    points = curve(replace(SPEC, hardware=Hardware(chip="v5p", topology="4x4x4")))
    assert points[0].chips == 1
    assert 90_000 < points[-1].chips <= 100_000
    several = [p.weak.tokens_per_s / p.chips for p in points if p.slices > 1]
    assert several == sorted(several, reverse=True)
    strong = [p.strong.tokens_per_s for p in points if p.strong]
    assert strong[0] < strong[3]


@pytest.mark.parametrize("command", ["sweep", "scale"])
def test_command_prints_simulated_figures_and_writes_them(command, tmp_path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(TABLES))
    out = tmp_path / "out.json"
    done = CliRunner().invoke(make_app(), [command, str(spec), "--json", str(out)])
    assert done.exit_code == 0, done.output
    assert "simulated" in done.output
    assert json.loads(out.read_text())["simulated"] is True


def _tried(
    name: str, rate: float, size: int, fits: bool = True, *, unit: str = "tokens_per_s"
) -> Tried:
    rates = {"tokens_per_s": 0.0, "samples_per_s": 0.0, unit: rate}
    hbm = {"peak_bytes": size, "fits": fits}
    return Tried(options=(name,), plan={"step_s": float(size), **rates, "hbm": hbm})


def test_front_of_scripts_leaves_out_what_is_beaten_failed_or_does_not_fit() -> None:
    fast, small = _tried("fast", 9, 9), _tried("small", 5, 2)
    beaten, large = _tried("beaten", 4, 3), _tried("large", 99, 99, fits=False)
    failed = Tried(options=("x",), plan={}, failure="no")
    assert front_of_scripts([beaten, small, failed, large, fast]) == [fast, small]


def test_front_of_scripts_that_read_images_goes_by_images_per_second() -> None:
    small, large = (
        _tried("x", rate, size, unit="samples_per_s") for rate, size in ((5, 2), (9, 9))
    )
    assert front_of_scripts([small, large]) == [large, small]
    assert large.rate == (9, "samples/s")


def test_option_without_values_is_tried_without_and_with_it() -> None:
    assert options_of(["--a=1,2"]) == [("--a=1",), ("--a=2",)]
    assert options_of(["--remat", "--a=1"]) == [("--a=1",), ("--remat", "--a=1")]
    for wrong in ("--tp=", "tp=1,2"):
        with pytest.raises(PlanError, match="--name=a,b"):
            options_of([wrong])


@pytest.mark.parametrize(
    ("command", "shown"), [("sweep", "On the front"), ("scale", "fixed work per chip")]
)
def test_page_of_a_spec_holds_its_figures(command, shown, tmp_path) -> None:
    pytest.importorskip("plotly", reason="the extra 'plan' is not installed")
    spec, page = tmp_path / "spec.json", tmp_path / "page.html"
    spec.write_text(json.dumps(TABLES))
    done = CliRunner().invoke(make_app(), [command, str(spec), "--html", str(page)])
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert shown in text
    assert "<script src=" not in text
    figures = json.loads(re.search(r"const figures = (.*);\n", text)[1])
    assert all(trace["x"] for figure in figures for trace in figure["data"])


def test_page_of_choices_numbers_the_front_and_names_what_failed(tmp_path) -> None:
    pytest.importorskip("plotly", reason="the extra 'plan' is not installed")
    rows = (("fast", 9.0, 9, True), ("small", 5.0, 2, True), ("large", 99.0, 99, False))
    points = [
        Point(name=n, step_s=1.0, rate=r, hbm_bytes=b * GIB, fits=fits, on_front=fits)
        for n, r, b, fits in rows
    ]
    page = tmp_path / "page.html"
    failures = [("--x=<1>", "no such option")]
    write(points, page, title="a", unit="tokens/s", limit_bytes=16 * GIB, failures=failures)
    text = page.read_text()
    assert "--x=&lt;1&gt;" in text
    (figure,) = json.loads(re.search(r"const figures = (.*);\n", text)[1])
    traces = {trace["name"]: trace for trace in figure["data"]}
    assert traces["on the front"]["x"] == [9, 2]
    assert traces["on the front"]["text"] == ["<b>1</b>", "<b>2</b>"]
    assert traces["does not fit"]["x"] == [99]


def test_efficiency_is_the_rate_of_a_chip_over_the_first() -> None:
    points = curve(replace(SPEC, hardware=Hardware(chip="v5e", topology="4x4")), 16)
    shares = efficiency([(point, point.weak) for point in points])
    assert shares[0] == 1
    last = points[-1]
    expected = last.weak.tokens_per_s / last.chips / points[0].weak.tokens_per_s
    assert shares[-1] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("choices_", "code", "said"),
    [
        ([(10.0, True), None], 0, "1 of 2 choices failed"),
        ([(10.0, False)], 3, "does not fit"),
        ([None], 1, "none of the choices could be planned"),
    ],
)
def test_sweep_of_a_script_says_what_failed_and_ends_with_a_code(
    tmp_path, monkeypatch, choices_, code, said
) -> None:
    def tried(*_):
        for made in choices_:
            plan = {} if made is None else _figures(*made)
            yield Tried(options=("--a=1",), plan=plan, failure="" if made else "bad.py: no a")

    def _figures(peak, fits):
        hbm = {"peak_bytes": peak, "fits": fits, "limit_bytes": 20.0}
        return {"step_s": 1.0, "tokens_per_s": 2.0, "samples_per_s": 0.0, "hbm": hbm}

    monkeypatch.setattr("torchtpu_core.cli.script_sweep.try_all", tried)
    script = tmp_path / "script.py"
    script.write_text("")
    shown = CliRunner().invoke(make_app(), ["plan", str(script), "--sweep=--a=1"])
    assert shown.exit_code == code
    assert said in shown.output
    assert ("failed: bad.py: no a" in shown.output) is (None in choices_)


@pytest.mark.parametrize(("gib", "limit", "unit"), [(8.0, True, "GiB"), (0.008, False, "MiB")])
def test_page_of_small_choices_has_their_scale_and_no_limit_far_off(gib, limit, unit) -> None:
    from torchtpu_core.reports.choices import Point, _figure

    point = Point(name="a", step_s=1e-5, rate=5.0, hbm_bytes=gib * 2**30, fits=True, on_front=True)
    figure = _figure([point], [], "samples/s", 16 * 2**30)
    assert ("limit of a device" in [trace["name"] for trace in figure["data"]]) is limit
    assert figure["layout"]["xaxis"]["title"]["text"].startswith(unit)
