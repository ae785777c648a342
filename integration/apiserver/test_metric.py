"""What real processes export is what docs/metrics.md lists, no more and no less; dashboard and alerts need nothing
else; and the figures are right.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress

import pytest
import yaml

from integration.apiserver.neighbours import Neighbours, Room, Station
from integration.apiserver.runtime import CniError
from integration.dashboard.documented import (
    COMMON,
    CONTROLLERS,
    DOCUMENT,
    UNPROVOKED,
    differences,
    documented,
    without_series,
)
from integration.dashboard.exposition import find_unknown, parse_document, parse_exposition
from integration.dashboard.panel import expressions
from integration.deployment import grant_node_list, revoke_node_list
from integration.generate import DASHBOARDS, ROOT
from integration.metrics_page import fetch_metrics
from integration.patience import wait_until
from integration.service import Service

pytestmark = pytest.mark.apiserver

ELSEWHERE = (
    *("coil-egress-agent", "coil-egress-agent-node", "coil-egress-controller", "coil-raven"),
    *("coil-ipam-controller with network interfaces", "coild with network interfaces"),
)
"""Sections that other tests hold to what is exported: `test_egress_agent`, `integration/eip/test_metric.py`,
`tests/coil_ipam_controller/eni/test_metric.py`, `tests/coild/eni/test_metric.py` and
`integration/neutron/test_metric.py`.
"""


@pytest.fixture(scope="module")
def world(neighbours: Neighbours) -> Iterator[Neighbours]:
    """With everything on, so that everything is exported."""
    grant_node_list(neighbours.plane)
    with neighbours.coild("--route-sync", "--cooling=1h"):
        for station in neighbours.stations:
            await_ready(station)
        yield neighbours
    revoke_node_list(neighbours.plane)


@pytest.fixture(scope="module")
def room(world: Neighbours) -> Iterator[Room]:
    """After an ADD, a CHECK and a DEL that succeeded, and an ADD and a CHECK that did not."""
    with world.room(bits=1) as room:
        here = world.stations[0]
        pods = [room.start(here) for _ in range(3)]
        result = here.runtime.add(pods[0].sandbox)
        here.runtime.check(pods[0].sandbox, cached=result)
        room.end(pods[2])
        with pytest.raises(CniError):
            here.runtime.check(here.sandbox(room.name), cached=result)
        here.node.make_namespace("astray", pool="nowhere")
        yield room
        # Without the long rest of the address that was given back, which its block would wait for.
        here.coild.kill()
        here.coild = here.node.start_coild("--cooling=500ms")


def await_ready(station: Station) -> None:
    wait_until(lambda: not station.node.unready(), what=f"coild of {station.name} is ready")


def controller_page(controller: Service) -> str:
    """The text of its metrics."""
    arguments = [str(argument) for argument in controller.process.args]  # type: ignore[union-attr]
    [address] = [text.partition("=")[2] for text in arguments if text.startswith("--metrics-addr=")]
    return fetch_metrics(address)


def test_coild_exports_what_is_documented(world: Neighbours, room: Room) -> None:
    exported = parse_exposition(world.stations[0].node.fetch(9384, "/metrics"))
    assert differences(exported, COMMON, "coild") == []
    assert without_series([exported], "coild") == []


def test_the_ipam_controller_exports_what_is_documented(world: Neighbours, room: Room) -> None:
    exported = parse_exposition(controller_page(world.controller))
    assert differences(exported, COMMON, CONTROLLERS, "coil-ipam-controller") == []
    assert without_series([exported], CONTROLLERS, "coil-ipam-controller") == []


def test_dashboard_and_alerts_use_only_what_is_exported(world: Neighbours, room: Room) -> None:
    pages = [controller_page(world.controller), world.stations[0].node.fetch(9384, "/metrics")]
    exported = [metric for page in pages for metric in parse_exposition(page).values()]
    # Not all that can be has happened yet: the other two tests hold the labels that are documented to the exported.
    described = list(documented(*parse_document(DOCUMENT)).values())
    names = {metric.name for metric in exported}
    names.update(*(parse_document(DOCUMENT)[section] for section in ELSEWHERE))
    [block] = re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
    queries = [text for path in DASHBOARDS.iterdir() for text in expressions(json.loads(path.read_text()))]
    queries += [rule["expr"] for group in yaml.safe_load(block)["groups"] for rule in group["rules"]]
    assert find_unknown(queries, [metric for metric in described if metric.name in names]) == []
    assert find_unknown(["sum(coil_node_made_up)"], described) != []


def test_the_nodes_figures_are_those_of_its_pods(world: Neighbours, room: Room) -> None:
    here, there = world.stations
    figures = here.metrics()
    addresses = {
        state: figures[f'coil_node_addresses{{pool="{room.name}",state="{state}"}}']
        for state in ("allocated", "cooling", "free")
    }
    assert addresses == {"allocated": 2, "cooling": 1, "free": 1}
    assert figures[f'coil_node_blocks{{pool="{room.name}"}}'] == len(room.blocks(here)) == 2
    assert figures["coil_node_exported_routes"] == 4
    assert not [name for name in there.metrics() if f'pool="{room.name}"' in name]


def test_operations_are_counted_by_outcome(world: Neighbours, room: Room) -> None:
    figures = world.stations[0].metrics()

    def count(operation: str, outcome: str) -> float:
        return figures[f'coil_cni_operation_duration_seconds_count{{operation="{operation}",outcome="{outcome}"}}']

    assert count("ADD", "ok") == 4
    assert count("DEL", "ok") == 1
    assert (count("CHECK", "ok"), count("CHECK", "UNKNOWN_CONTAINER")) == (1, 1)
    assert {value for name, value in figures.items() if name.startswith("coil_cni_operations_in_flight")} == {0}
    # The first and the third pod had to wait for a block; the first perhaps longer than its ADD.
    assert figures[f'coil_node_address_wait_seconds_count{{outcome="served",pool="{room.name}"}}'] in (1, 2)


def test_a_pool_without_blocks_shows_in_the_waits(world: Neighbours, room: Room) -> None:
    here = world.stations[0]
    refusals = 'coil_cni_operation_duration_seconds_count{operation="ADD",outcome="TRY_AGAIN_LATER"}'
    before = here.metrics().get(refusals, 0)
    with pytest.raises(CniError, match="nowhere"):
        world.attempt(here, namespace="astray")
    figures = here.metrics()
    assert figures['coil_node_address_wait_seconds_count{outcome="refused",pool="nowhere"}'] == 1
    assert figures[refusals] == before + 1


def test_every_metric_of_all_processes_is_set_by_one(world: Neighbours, room: Room) -> None:
    """The last test: the pool goes, which an Event reports while the pool still has blocks."""

    def silent() -> list[str]:
        pages = (controller_page(world.controller), world.stations[0].node.fetch(9384, "/metrics"))
        return without_series(map(parse_exposition, pages), COMMON)

    world.plane.kubectl("delete", "addresspool", room.name, "--wait=false")
    with suppress(AssertionError):  # which would not say which
        wait_until(lambda: not set(silent()) - set(UNPROVOKED), what="no other metric is without series")
    # Fewer is no fault: an API server that has just got a new kind refuses to list it at first, on a busy machine.
    assert set(silent()) <= set(UNPROVOKED)
    for name, test in UNPROVOKED.items():
        assert name in (ROOT / test).read_text()
