# SPDX-License-Identifier: Apache-2.0
"""What single links carry in a step, with and without faults, and how the page shows it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from torchtpu_core.ici import Faults, Network, parse_slice
from torchtpu_core.ici.closed_form import ClosedForm
from torchtpu_core.ici.groups import span_of
from torchtpu_core.ici.kinds import CollectiveKind
from torchtpu_core.plan import html
from torchtpu_core.plan.links import traffic_of
from torchtpu_core.plan.making import make_plan
from torchtpu_core.plan.records import Recording
from torchtpu_core.plan.result import Plan
from torchtpu_core.plan.torus_figure import torus

MIB = 2**20
V5P = parse_slice("v5p:4x4x4")
EVERYONE = tuple(range(64))
GATHER = Counter({("all_gather", MIB, EVERYONE): 3})


def _plan(faults: Faults) -> Plan:
    made = make_plan(Recording(world_size=64), V5P, 1, "highest", faults)
    made.schedule.traffic = traffic_of(GATHER, 0.0, 1e-2, Network.of(V5P, faults=faults))
    return made


def test_links_of_a_torus_without_faults_carry_the_same() -> None:
    # What all links carry is what all chips take in: all but their own shard, once each time.
    traffic = traffic_of(GATHER, 0.0, 1e-2, Network.of(V5P))
    assert traffic.sent_bytes.shape == (64, 6)
    np.testing.assert_allclose(traffic.sent_bytes, 3 * 63 * MIB / 6)
    first = traffic.kinds[0]
    assert (first.source, first.target, first.alike) == (0, 1, 128)
    assert first.which == "chip 0 to chip 1 (axis 0, and 127 alike)"
    rate = Network.of(V5P).link.bytes_per_s
    assert first.load == pytest.approx(3 * 63 * MIB / 6 / rate / 1e-2)


def test_slow_cable_is_the_busiest() -> None:
    faults = Faults(cables_slow={(21, 22): 0.25})
    slow, whole = (
        traffic_of(GATHER, 0.0, 1e-2, Network.of(V5P, faults=f)) for f in (faults, Faults())
    )
    busiest = slow.kinds[0]
    assert {busiest.source, busiest.target} == {21, 22}
    assert busiest.alike == 2
    assert busiest.load == pytest.approx(4 * whole.kinds[0].load)
    np.testing.assert_allclose(slow.sent_bytes, whole.sent_bytes)


def test_bytes_of_a_cable_that_is_down_go_the_other_ways() -> None:
    network = Network.of(V5P, faults=Faults(cables_down=frozenset({(0, 1)})))
    traffic, whole = traffic_of(GATHER, 0.0, 1e-2, network), 3 * 63 * MIB / 6
    assert traffic.sent_bytes[0, 0] == traffic.sent_bytes[1, 1] == 0
    # Two links, each replaced by three.
    assert traffic.sent_bytes.sum() == pytest.approx((64 * 6 - 2 + 6) * whole)
    assert traffic.kinds[0].load == pytest.approx(2 * whole / network.link.bytes_per_s / 1e-2)


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("group", [range(4), range(0, 64, 4), range(64), range(0, 4, 2)])
def test_busiest_link_carries_what_the_closed_form_says(kind, group) -> None:
    network, group = Network.of(V5P), tuple(group)
    found = ClosedForm(network).collective_time(CollectiveKind(kind), MIB, span_of(group, V5P))
    traffic = traffic_of(Counter({(kind, MIB, group): 1}), 0.0, 1e-2, network)
    by_axis = {link.name: link.sent_bytes for link in traffic.kinds}
    assert by_axis == pytest.approx(
        {f"axis {axis}": sent for axis, sent in found.axis_bytes.items()}, rel=1e-3
    )


def test_message_loads_the_links_of_its_way_in_every_group() -> None:
    sent = Counter({("collective_permute", MIB, (0, 4)): 1})
    traffic = traffic_of(sent, 0.0, 1e-2, Network.of(V5P))
    # Chips 4 apart are neighbours along axis 1; pairs of rows send upwards.
    assert traffic.kinds[0].name == "axis 1"
    assert traffic.sent_bytes.sum() == 32 * MIB


def test_page_draws_every_cable_with_its_own_load() -> None:
    faults = Faults(cables_down=frozenset({(0, 1)}), cables_slow={(21, 22): 0.25})
    links, busier, down, _ = torus(_plan(faults))["data"]
    words = [*links["text"][::3], *busier["text"][::3]]
    assert len(words) == 3 * 64 - 1
    assert len(busier["text"][::3]) == 4  # a detour of three cables, and the slow one
    loads = {*links["line"]["color"], *busier["line"]["color"]}
    assert len(loads) == 3  # whole, shared with a detour, slow
    assert max(loads) == links["line"]["cmax"]
    assert sum("25% of its rate left" in text for text in words) == 1
    assert down["text"][0] == "chips 0 and 1: down"


def test_links_that_carry_nothing_have_no_scale_of_loads() -> None:
    made = make_plan(Recording(world_size=64), V5P, 1, "highest")
    made.schedule.traffic = traffic_of(Counter(), 0.0, 1e-2, Network.of(V5P))
    links = torus(made)["data"][0]
    assert {*links["line"]["color"]} == {0.0}
    assert not links["line"]["showscale"]
    assert torus(_plan(Faults()))["data"][0]["line"]["showscale"]


def test_page_names_the_slices_and_says_what_the_plan_noted(tmp_path) -> None:
    pytest.importorskip("plotly", reason="the extra 'plan' is not installed")
    made = make_plan(Recording(notes=["a <note>"]), V5P, 3, "highest")
    html.write(made, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "on v5p:4x4x4 x 3 slices</h1>" in page
    assert "a &lt;note&gt;" in page


def test_page_of_one_chip_has_no_torus(tmp_path) -> None:
    pytest.importorskip("plotly", reason="the extra 'plan' is not installed")
    made = make_plan(Recording(), parse_slice("v5e:1x1"), 1, "highest")
    html.write(made, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<h2>Memory</h2>" in page
    assert "<h2>Torus</h2>" not in page
