# SPDX-License-Identifier: Apache-2.0
"""Published rows: what the project promises of its errors, and what the command says."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from torchtpu_core.cli.app import make_app
from torchtpu_core.errors import SpecError
from torchtpu_core.validation import Row, compare, read_rows
from torchtpu_core.validation.compare import Summary, by_configuration, by_row
from torchtpu_core.validation.predict import NotModelledError, predict
from torchtpu_core.workloads import Spec, read_specs
from torchtpu_core.workloads.fields import build
from typer.testing import CliRunner

PUBLISHED = Path(__file__).parents[4] / "benchmarks" / "validation"
ROWS = "id,metric,value,unit\nA,bandwidth,1360,GB/s\nB,warp_speed,9,c\nC,time,1,s\n"
COPY = "rows = ['A', 'B']\n[hardware]\nchip = 'v6e'\n[copy]\nbytes = 33554432\n"


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, Path]:
    """A table of three rows, of which the model covers one, and a folder of specs."""
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "copy.toml").write_text(COPY)
    (tmp_path / "rows.csv").write_text(ROWS)
    return tmp_path / "rows.csv", tmp_path / "specs"


@pytest.mark.parametrize(
    ("metric", "unit"),
    [("tokens_per_s", "%"), ("tflops_per_chip", "GFLOP/s/chip"), ("tokens_per_s_per_chip", "s")],
)
def test_rate_in_a_unit_that_is_not_its_own_is_refused(metric, unit) -> None:
    spec = read_specs(PUBLISHED / "specs")["R001"]
    with pytest.raises(NotModelledError, match=f"{metric} is in '{unit}'; known units: "):
        predict(spec, metric, unit)


def test_public_rows_are_predicted_within_the_promised_errors() -> None:
    found = compare(read_rows(PUBLISHED / "rows.csv"), read_specs(PUBLISHED / "specs"))
    assert len(found) == 127
    assert all(item.predicted is not None for item in found)
    for figures in (by_row(found), by_configuration(found)):
        assert figures.median <= 0.10
        assert figures.within >= 0.9


def test_published_rows_no_constant_was_chosen_by_are_near_too() -> None:
    found = compare(read_rows(PUBLISHED / "other_rows.csv"), read_specs(PUBLISHED / "specs"))
    assert all(item.predicted is not None for item in found)
    assert by_row(found).median <= 0.10
    assert by_row(found).within >= 0.9


def test_rows_looked_up_last_are_all_modelled() -> None:
    found = compare(read_rows(PUBLISHED / "later_rows.csv"), read_specs(PUBLISHED / "specs"))
    assert all(item.predicted is not None for item in found)
    assert by_row(found).median <= 0.15


def test_rows_of_other_libraries_are_all_modelled() -> None:
    found = compare(read_rows(PUBLISHED / "latest_rows.csv"), read_specs(PUBLISHED / "specs"))
    assert len(found) == 35
    assert all(item.predicted is not None for item in found)
    assert by_row(found).median <= 0.10
    assert by_row(found).within >= 0.85


def test_spec_with_a_mistake_is_the_reason_of_its_rows(small) -> None:
    rows, specs = small
    (specs / "c.toml").write_text("rows = ['C']\n[hardware]\nchip = 'v6e'\n[copi]\nbytes = 1\n")
    good, _, wrong = compare(read_rows(rows), read_specs(specs))
    assert good.predicted is not None
    assert "no key 'copi'" in wrong.reason
    assert wrong.mistake


def _collective(topology: str, text: str, slices: int = 1) -> float:
    """Simulated seconds of a collective on v5e."""
    hardware = {"chip": "v5e", "topology": topology, "slices": slices}
    table = {"hardware": hardware, "collective": tomllib.loads(text)}
    return predict(build(Spec, table, "test"), "time", "s")


START_S, LINK, HOP_S = 5e-6, 45e9, 1e-6


@pytest.mark.parametrize("hops", [1, 3])
def test_permute_loads_each_link_with_the_messages_of_its_hops(hops) -> None:
    seconds = _collective("16x16", f"kind = 'permute'\nbytes = 9e6\nhops = {hops}")
    assert seconds == pytest.approx(START_S + hops * 9e6 / LINK + hops * HOP_S, rel=0.01)


def test_send_of_one_message_is_alone_on_its_links() -> None:
    seconds = _collective("16x16", "kind = 'send'\nbytes = 9e6\nhops = 3")
    assert seconds == pytest.approx(START_S + 9e6 / LINK + 3 * HOP_S, rel=0.01)


def test_all_reduce_over_slices_sends_one_share_between_them() -> None:
    one = _collective("16x16", "kind = 'all_reduce'\nbytes = 256e6")
    two = _collective(
        "16x16", "kind = 'all_reduce'\nbytes = 256e6\nspan = '16wx16w'\ndcn = true", 2
    )
    # v5e has 200 Gb/s for eight chips, of which 66 % is reached; a chip sends its 1 MB, and both
    # the sum and its parts wait for the first byte.
    assert two - one == pytest.approx(1e6 / (0.66 * 25e9 / 8) + 2 * 20e-6, rel=0.01)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind = 'allreduce'\nbytes = 1", "all_reduce"),
        ("kind = 'all_reduce'\nbytes = 1\nspan = '4 by 4'", "4x8"),
        ("kind = 'send'\nbytes = 1\nhops = 16", "1 to 15"),
    ],
)
def test_wrong_collective_says_what_it_can_be(text, message) -> None:
    with pytest.raises(SpecError, match=message):
        _collective("16x16", text)


def test_attention_kernel_is_never_faster_than_the_peak() -> None:
    table = {
        "hardware": {"chip": "v6e"},
        "attention": {"batch": 4, "heads": 32, "sequence": 8192, "head_dim": 128},
    }
    rate = predict(build(Spec, table, "test"), "tflops", "TFLOP/s")
    # A head of 128 fills half of the matrix unit.
    assert 100 < rate < 918 / 2


def test_keys_of_a_spec_are_printed() -> None:
    done = CliRunner().invoke(make_app(), ["validate", "--keys"])
    assert done.exit_code == 0, done.output
    assert "[model.experts]" in done.output
    assert "capacity_factor: float = 0.0" in done.output


def test_row_is_compared_and_others_get_a_reason(small) -> None:
    rows, specs = small
    good, unknown, missing = compare(read_rows(rows), read_specs(specs))
    # 2 x 32 MiB at 0.867 of 1638 GB/s, and 1.5 us to start.
    expected = 2 * 33554432 / (2 * 33554432 / (0.867 * 1638e9) + 1.5e-6) / 1e9
    assert good.predicted == pytest.approx(expected)
    assert "warp_speed" in unknown.reason
    assert "no spec file" in missing.reason


def test_summary_of_errors_takes_magnitudes() -> None:
    assert Summary.of([-0.3, 0.1, 0.2]) == Summary(
        count=3, median=0.2, worst=0.3, within=pytest.approx(2 / 3)
    )


@pytest.mark.parametrize(
    "text", ["id,metric\n", "id,m\0etric,value,unit\n", "", ROWS.replace(",", ";")]
)
def test_table_without_its_columns_raises(tmp_path, text) -> None:
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(SpecError, match="lacks the columns"):
        read_rows(tmp_path / "rows.csv")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("A,time,1,s", "A occurs twice, first in .*rows.csv:2: give another"),
        ("D,time", "rows.csv:5: row 'D' has no value and no unit"),
        (",time,1,s", "row '' has no id"),
        ("D,time,0,s", "row 'D', value = '0': .* give a number above 0"),
        ("D,time,nan,s", "give a number above 0"),
        ("D,time,-3,s", "Nearest: 3"),
        ("D,time,10 s,s", "Nearest: 10"),
        ('D,time,"1,234.5",s', "Nearest: 1234.5"),
        ("D,time,1,s,v6e,more", "2 more fields than the header has columns: quote"),
        ('D,time,"1,s', "has no unit"),
        ("A2,time,1,sec,,A", "row 'A2', time is in 'sec'; known units: s, ms"),
        ("A2,tme,1,s,,A", "Did you mean 'time'"),
        ("A2,bandwidth,1,GBs,,A", "Did you mean 'GB/s'"),
    ],
)
def test_row_with_a_mistake_is_listed_with_its_reason_and_stops_no_other(
    small, line, message
) -> None:
    rows, specs = small
    head = ROWS if line.count(",") < 5 or "more" in line else ROWS.replace("unit", "unit,x,spec")
    rows.write_text(head + line + "\nE,time,1,s\n")
    found = compare(read_rows(rows), read_specs(specs))
    assert found[0].predicted is not None
    assert [item.row.id for item in found[:3]] == ["A", "B", "C"]
    assert found[-1].row.id == "E"
    assert [item.mistake for item in found] == [False, False, False, True, False]
    assert re.search(message, found[3].reason)


@pytest.mark.parametrize(
    ("metric", "unit", "value", "message"),
    [
        ("mfu", "fraction", 57.0, "more than all. Nearest: the unit %, 57 %"),
        ("hfu", "%", 570.0, "570 in '%' is more than all"),
        ("mfu", "parts", 0.5, "known units: %, percent, fraction, 1"),
        ("tokens_per_s", "tokens/s/chip", 100.0, "use tokens_per_s_per_chip"),
    ],
)
def test_figure_that_its_unit_cannot_have_is_a_mistake(metric, unit, value, message) -> None:
    row = Row(id="R001", metric=metric, value=value, unit=unit, spec="R001")
    (found,) = compare([row], read_specs(PUBLISHED / "specs"))
    assert found.mistake
    assert message in found.reason


@pytest.mark.parametrize(
    ("metric", "unit", "factor"),
    [("mfu", "% of peak", 100), ("mfu", "ratio", 1), ("tokens_per_s", "tokens/s/pod", 1)],
)
def test_other_words_for_a_unit_are_understood(metric, unit, factor) -> None:
    spec = read_specs(PUBLISHED / "specs")["R001"]
    plain = {"mfu": "fraction", "tokens_per_s": "tokens/s"}[metric]
    assert predict(spec, metric, unit) == factor * predict(spec, metric, plain)


def test_rate_of_a_device_is_its_part_of_the_chips() -> None:
    spec = read_specs(PUBLISHED / "specs")["X44"]
    chip, device = (
        predict(spec, "tflops_per_chip", f"TFLOP/s/{what}") for what in ("chip", "device")
    )
    assert chip == 2 * device


def test_numbers_beyond_computing_are_a_mistake(small) -> None:
    rows, specs = small
    matmul = (
        f"rows = ['C']\n[hardware]\nchip = 'v6e'\n[matmul]\nm = {10**200}\nk = {10**200}\nn=1\n"
    )
    (specs / "c.toml").write_text(matmul)
    good, _, wrong = compare(read_rows(rows), read_specs(specs))
    assert good.predicted is not None
    assert wrong.mistake
    assert "beyond what can be computed" in wrong.reason


@pytest.mark.parametrize("name", ["c.toml", "c.json", "c.yaml"])
def test_rows_of_a_file_that_cannot_be_parsed_are_read_from_its_text(small, name) -> None:
    rows, specs = small
    text = {
        "c.toml": "rows = ['C']\n[hardware\n",
        "c.json": '{"rows": ["C"], "hardware": }',
        "c.yaml": "rows: [C]\nhardware: [\n",
    }
    (specs / name).write_text(text[name])
    wrong = compare(read_rows(rows), read_specs(specs))[2]
    assert wrong.mistake
    assert f"{name} cannot be read as a spec" in wrong.reason


def test_command_lists_mistakes_evaluates_the_rest_and_exits_with_1(small, tmp_path) -> None:
    rows, specs = small
    rows.write_text(ROWS + "D,time,1 s,s\n")
    (specs / "lost.toml").write_text("= 3")
    out = tmp_path / "out.json"
    args = ["validate", "--rows", str(rows), "--specs", str(specs), "--json", str(out)]
    done = CliRunner().invoke(make_app(), args)
    assert done.exit_code == 1
    assert "1 rows: median error" in done.output
    assert "1 rows with a mistake:" in done.output
    assert "lost.toml cannot be read as a spec" in done.output
    written = json.loads(out.read_text())["rows"]
    assert [row["mistake"] for row in written] == [False, False, False, True]
    assert written[3]["published"] is None


def test_command_writes_every_row_and_says_simulated(small, tmp_path) -> None:
    rows, specs = small
    out = tmp_path / "out.json"
    args = ["validate", "--rows", str(rows), "--specs", str(specs), "--json", str(out)]
    done = CliRunner().invoke(make_app(), args)
    assert done.exit_code == 0, done.output
    assert "1 rows: median error" in done.output
    assert "simulated" in done.output
    written = json.loads(out.read_text())
    assert [row["id"] for row in written["rows"]] == ["A", "B", "C"]
    assert written["simulated"] is True


def test_command_with_a_wrong_folder_says_so_without_a_traceback(small) -> None:
    rows, specs = small
    done = CliRunner().invoke(
        make_app(), ["validate", "--rows", str(rows), "--specs", str(specs / "none")]
    )
    assert done.exit_code == 1
    assert "SpecError" in done.output
    assert "Traceback" not in done.output


def test_table_that_is_no_text_is_refused(tmp_path) -> None:
    (tmp_path / "rows.csv").write_bytes(b"\x8a\xff\xfe")
    with pytest.raises(SpecError, match="cannot be read as a table"):
        read_rows(tmp_path / "rows.csv")


def test_misspelt_metric_is_suggested(small) -> None:
    rows, specs = small
    rows.write_text(ROWS.replace("warp_speed", "bandwith"))
    assert "Did you mean 'bandwidth'?" in compare(read_rows(rows), read_specs(specs))[1].reason


def test_nothing_modelled_exits_with_1(small) -> None:
    rows, specs = small
    rows.write_text("id,metric,value,unit\nC,time,1,s\n")
    shown = CliRunner().invoke(make_app(), ["validate", "--rows", str(rows), "--specs", str(specs)])
    assert shown.exit_code == 1
    assert "no spec file lists this row" in shown.output
