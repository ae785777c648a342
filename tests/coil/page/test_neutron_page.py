"""The page of coil-raven, as an independent parser sees it."""

import json
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coil.page.document import render_json
from coil.page.neutron_document import (
    CallDocument,
    CallErrorDocument,
    CallsDocument,
    EventDocument,
    ListenerDocument,
    LoadBalancerDocument,
    MemberDocument,
    NetworkDocument,
    NetworkState,
    NeutronDocument,
    PortDocument,
    PortState,
    ServiceDocument,
    ServiceState,
    SubnetDocument,
    SupernetDocument,
)
from coil.page.neutron_page import MEMBERS, TABLE_ROWS, render_neutron_page
from coil.page.query import parse_query
from tests.coil.page.html_tree import Element, parse_html
from tests.coil.page.scene import NOON, TEXTS

CALLS = CallsDocument(
    span_seconds=300.0,
    count=90,
    per_second=0.3,
    errors=2,
    paused_seconds=0.0,
    by_call=(CallDocument(call="create port", count=60, errors=2, mean_seconds=0.25),),
    last_errors=(
        CallErrorDocument(
            at=NOON - timedelta(minutes=3), call="create port", code="OverQuota", message="Quota exceeded for ports"
        ),
    ),
)
EVENT = EventDocument(
    at=NOON - timedelta(hours=2),
    count=3,
    type="Warning",
    kind="Pod",
    namespace="apps",
    name="lost",
    reason="PortNotBound",
    message="no agent on 'node-b'",
)
PORTS = (
    PortDocument(
        state=PortState.NOT_BOUND, namespace="apps", pod="lost", node="node-b", id="p-2", addresses=("10.0.0.16",)
    ),
    PortDocument(state=PortState.WAITING, namespace="late", pod="early", node="node-a"),
    PortDocument(
        state=PortState.ACTIVE,
        namespace="apps",
        pod="web",
        node="node-a",
        id="p-1",
        addresses=("10.0.0.15", "fd00::15"),
        mac="fa:16:3e:00:00:15",
        host="compute-a",
    ),
    PortDocument(state=PortState.LEAVING, id="p-3", addresses=("10.0.0.17",), description="Pod apps/gone"),
)
NETWORKS = (
    NetworkDocument(namespace="late", state=NetworkState.WAITING),
    NetworkDocument(
        namespace="apps",
        state=NetworkState.READY,
        id="n-1",
        project="project-1",
        segmentation_id=17,
        mtu=1450,
        subnets=(
            SubnetDocument(id="s-4", cidr="10.0.0.0/16", gateway="10.0.0.1"),
            SubnetDocument(id="s-6", cidr="fd00::/64", gateway="fd00::1"),
        ),
        ports=3,
    ),
)
SERVICES = (
    ServiceDocument(
        namespace="apps",
        name="web",
        type="LoadBalancer",
        state=ServiceState.AS_PLANNED,
        floating_ip="192.0.2.5",
        load_balancers=(
            LoadBalancerDocument(
                id="lb-1",
                vip="10.96.0.5",
                provider="amphora",
                provisioning_status="ACTIVE",
                as_planned=True,
                listeners=(
                    ListenerDocument(
                        protocol="TCP",
                        port=80,
                        member_count=1,
                        members=(MemberDocument(address="10.0.0.15", port=8080),),
                    ),
                    ListenerDocument(protocol="UDP", port=53, member_count=0),
                ),
            ),
        ),
    ),
)
LEADER = NeutronDocument(
    replica="replica-1",
    leads=True,
    leader="replica-1",
    at=NOON,
    cluster="stage",
    supernets=(SupernetDocument(network="10.0.0.0/8", part_length=16, parts=256, taken=4, left=252),),
    networks=NETWORKS,
    ports=PORTS,
    port_counts={"active": 1, "down": 0, "notBound": 1, "waiting": 1, "leaving": 1},
    services=SERVICES,
    calls=CALLS,
    events=(EVENT,),
)


def page(document: NeutronDocument = LEADER, query: str = "") -> Element:
    return parse_html(render_neutron_page(document, parse_query(query)))


def rows(root: Element, section: str) -> list[list[str]]:
    body = root.by_id(section).all("tbody")[0]
    return [[cell.text for cell in row.children if isinstance(cell, Element)] for row in body.all("tr")]


def sections(root: Element) -> list[str | None]:
    return [section.attributes["id"] for section in root.all("section")]


def test_everything_that_a_leader_knows() -> None:
    root = page()
    assert sections(root) == ["summary", "ports", "services", "networks", "events", "calls"]
    assert rows(root, "ports") == [
        ["apps/lost", "not bound", "10.0.0.16", "", "node-b", "", "p-2"],
        ["late/early", "waiting", "", "", "node-a", "", ""],
        ["apps/web", "active", "10.0.0.15fd00::15", "fa:16:3e:00:00:15", "node-a", "compute-a", "p-1"],
        ["Pod apps/gone", "leaving", "10.0.0.17", "", "", "", "p-3"],
    ]
    assert rows(root, "networks") == [
        ["late", "waiting", "", "", "", "0", "", ""],
        ["apps", "ready", "10.0.0.0/16fd00::/64", "17", "1450", "3", "n-1", "project-1"],
    ]
    assert rows(root, "services") == [
        [
            "apps/web LoadBalancer",
            "as planned",
            "10.96.0.5",
            "ACTIVE (amphora)",
            "TCP 80 → 10.0.0.15:8080UDP 53 → nobody",
            "192.0.2.5",
            "lb-1",
        ]
    ]
    assert rows(root, "events") == [["Pod apps/lost", "PortNotBound", "no agent on 'node-b'", "3", "2 h ago"]]
    assert rows(root, "calls") == [["create port", "60", "2", "0.250 s"]]
    errors = root.by_id("calls").all("tbody")[1]
    assert [cell.text for cell in errors.all("td")] == ["OverQuota", "Quota exceeded for ports", "3 min ago"]


def test_counts() -> None:
    tiles = {tile.one("dt").text: tile.one("dd").text for tile in page().all("div", "tile")}
    assert tiles == {
        "ports active": "1",
        "ports not bound": "1",
        "ports waiting": "1",
        "ports leaving": "1",
        "networks": "1",
        "load balancers": "1",
        "calls": "90in 5 min, 0.3 a second",
        "errors": "2in 5 min",
    }
    assert "252 parts /16 left of 256, 1 % taken" in page().by_id("summary").text


def test_an_exhausted_supernet() -> None:
    full = SupernetDocument(network="10.0.0.0/14", part_length=16, parts=4, taken=4, left=0)
    summary = page(msgspec.structs.replace(LEADER, supernets=(full,))).by_id("summary")
    assert summary.one("span", "bad").text == "exhausted"


def test_a_replica_that_stands_by_says_so_and_who_leads() -> None:
    standby = NeutronDocument(
        replica="replica-2", leads=False, leader="replica-1", at=NOON, cluster="stage", calls=CALLS, events=(EVENT,)
    )
    root = page(standby)
    assert sections(root) == ["summary", "events", "calls"]
    assert root.by_id("standby").text == "Only the replica that leads knows networks and ports: replica-1"
    assert "a replica that stands by" in root.one("header").text
    alone = page(msgspec.structs.replace(standby, leader=None))
    assert alone.by_id("summary").one("p", "wrong").text.startswith("No replica is known to lead.")


def test_a_pause_is_told() -> None:
    paused = msgspec.structs.replace(LEADER, calls=msgspec.structs.replace(CALLS, paused_seconds=12.0))
    wrong = page(paused).by_id("summary").one("p", "wrong")
    assert wrong.text.startswith("No calls at present: ")
    assert wrong.text.endswith("the pause ends in 12 s")


def test_without_load_balancers_there_is_no_table_of_them() -> None:
    assert "services" not in sections(page(msgspec.structs.replace(LEADER, services=None)))


@pytest.mark.parametrize(
    ("query", "pods", "services", "networks"),
    [
        ("web", ["apps/web"], 1, 0),
        ("apps", ["apps/lost", "apps/web", "Pod apps/gone"], 1, 1),
        ("apps/WEB", ["apps/web"], 1, 0),
        ("10.0.0.15", ["apps/web"], 1, 1),
        ("fd00:0::15", ["apps/web"], 0, 1),
        ("10.0.0.16/31", ["apps/lost", "Pod apps/gone"], 0, 1),
        ("fa:16:3E:00:00:15", ["apps/web"], 0, 0),
        ("p-3", ["Pod apps/gone"], 0, 0),
        ("compute-a", ["apps/web"], 0, 0),
        ("node-a late", ["late/early"], 0, 0),
        ("192.0.2.5", [], 1, 0),
        ("lb-1", [], 1, 0),
        ("s-6", [], 0, 1),
        ("nothing", [], 0, 0),
    ],
)
def test_a_search(query: str, pods: list[str], services: int, networks: int) -> None:
    root = page(query=query)
    assert [row[0] for row in rows(root, "ports")] == pods
    assert (len(rows(root, "services")), len(rows(root, "networks"))) == (services, networks)
    count = f"{len(pods)} port{'' if len(pods) == 1 else 's'}"
    assert root.one("output").text.startswith(count)
    assert query in root.by_id("ports").one("caption").text


def test_events_are_searched_as_well() -> None:
    assert rows(page(query="lost"), "events") != []
    assert rows(page(query="elsewhere"), "events") == []


def test_long_tables_are_cut_and_searched_in_whole() -> None:
    ports = tuple(
        PortDocument(state=PortState.ACTIVE, namespace="apps", pod=f"web-{number}", id=f"id-{number}")
        for number in range(TABLE_ROWS + 20)
    )
    many = msgspec.structs.replace(LEADER, ports=ports, left_out={"ports": 1234})
    root = page(many)
    assert len(rows(root, "ports")) == TABLE_ROWS
    assert root.by_id("ports").one("caption").text == "320 ports; these are the first 300, search for the others"
    assert root.by_id("left-out").text == "Left out, also of the search and of JSON: 1,234 ports"
    assert [row[0] for row in rows(page(many, f"id-{TABLE_ROWS + 7}"), "ports")] == [f"apps/web-{TABLE_ROWS + 7}"]


def test_many_members_are_counted() -> None:
    members = tuple(MemberDocument(address=f"fd00::{number}", port=80) for number in range(1, 20))
    listener = ListenerDocument(protocol="TCP", port=80, member_count=60, members=members)
    balancer = msgspec.structs.replace(SERVICES[0].load_balancers[0], vip="fd96::5", listeners=(listener,))
    service = msgspec.structs.replace(SERVICES[0], load_balancers=(balancer,))
    text = rows(page(msgspec.structs.replace(LEADER, services=(service,))), "services")[0][4]
    assert text.startswith("TCP 80 → [fd00::1]:80, ")
    assert text.endswith(f"[fd00::{MEMBERS}]:80 and {60 - MEMBERS} more")


def test_json_has_it_all_under_names_of_a_contract() -> None:
    document = json.loads(render_json(LEADER))
    assert document["leads"] is True
    assert document["ports"][2] == {
        "state": "active",
        "namespace": "apps",
        "pod": "web",
        "node": "node-a",
        "id": "p-1",
        "addresses": ["10.0.0.15", "fd00::15"],
        "mac": "fa:16:3e:00:00:15",
        "host": "compute-a",
        "description": "",
    }
    assert document["supernets"][0] == {
        "network": "10.0.0.0/8",
        "partLength": 16,
        "parts": 256,
        "taken": 4,
        "left": 252,
    }
    assert document["services"][0]["loadBalancers"][0]["provisioningStatus"] == "ACTIVE"


@given(st.lists(TEXTS, min_size=8, max_size=8), TEXTS)
@settings(max_examples=60)
def test_no_text_becomes_markup(texts: list[str], query: str) -> None:
    a, b, c, d, e, f, g, h = texts
    foreign = NeutronDocument(
        replica=a,
        leads=True,
        leader=b,
        at=NOON,
        cluster=c,
        networks=(
            NetworkDocument(
                namespace=d, state=NetworkState.READY, id=e, project=f, subnets=(SubnetDocument(id=g, cidr=h),)
            ),
        ),
        ports=(
            PortDocument(
                state=PortState.ACTIVE, namespace=a, pod=b, node=c, id=d, addresses=(e,), mac=f, host=g, description=h
            ),
            PortDocument(state=PortState.LEAVING, description=h),
        ),
        services=(
            ServiceDocument(
                namespace=a,
                name=b,
                type=c,
                state=ServiceState.FAILED,
                floating_ip=d,
                load_balancers=(
                    LoadBalancerDocument(
                        id=e,
                        vip=f,
                        provider=g,
                        provisioning_status=h,
                        as_planned=False,
                        listeners=(
                            ListenerDocument(
                                protocol=a, port=1, member_count=1, members=(MemberDocument(address=b, port=2),)
                            ),
                        ),
                    ),
                ),
            ),
        ),
        calls=msgspec.structs.replace(CALLS, last_errors=(CallErrorDocument(at=NOON, call=a, code=b, message=c),)),
        events=(EventDocument(at=NOON, count=1, type=a, kind=b, namespace=c, name=d, reason=e, message=f),),
    )
    shown, known = page(foreign, query), page()
    assert {element.tag for element in shown.walk()} <= {element.tag for element in known.walk()} | {"small", "a"}
    assert len(shown.all("script")) == len(known.all("script"))
    allowed = {name for element in known.walk() for name in element.attributes} | {"value", "maxlength"}
    assert {name for element in shown.walk() for name in element.attributes} <= allowed
