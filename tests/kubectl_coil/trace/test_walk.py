"""The way of a packet in small clusters: where it goes, whom the other side sees, and why it stops."""

from typing import Any

import msgspec
import pytest

from kubectl_coil.trace.document import TraceDocument, Verdict
from tests.kubectl_coil.trace.scene import (
    CLIENT,
    EGRESS,
    EIP,
    FAR,
    HERE,
    MARK,
    N1,
    OUTSIDE,
    ROUTER,
    SENDER,
    Scene,
    eip_tables,
    nft_map,
    pod,
    pod_namespace,
    route,
    with_eip,
)


def places(document: TraceDocument) -> list[str]:
    return [hop.at for hop in document.hops]


async def test_a_pod_without_egress_is_seen_outside_as_itself() -> None:
    document = await Scene.plain().trace()
    assert (document.verdict, document.source_seen) == (Verdict.DELIVERED, CLIENT)
    assert places(document) == ["pod shop/client", "node n0"]
    assert document.hops[-1].by == "rule 32766, table 254: 0.0.0.0/0 via 192.0.2.1"
    assert document.doubts == ()


async def test_a_pod_on_another_node() -> None:
    document = await Scene.plain().trace(FAR)
    assert (document.verdict, document.source_seen) == (Verdict.DELIVERED, CLIENT)
    assert places(document) == ["pod shop/client", "node n0", "node n1"]
    assert document.hops[-1].action == "hands it to the pod shop/far by vethpod"


async def test_a_node() -> None:
    document = await Scene.plain().trace(N1)
    assert [hop.action for hop in document.hops][1:] == ["sends it to the node n1 by eth0", "is the destination"]


async def test_a_service_becomes_an_endpoint() -> None:
    scene = Scene.plain()
    scene.add_service("web", "10.96.0.9", [FAR], port=80)
    document = await scene.trace("10.96.0.9")
    assert document.destination == "10.96.0.9"
    assert document.hops[1].action == f"picks one of 1 endpoints: {FAR} port 81"
    assert document.hops[-1].action == "hands it to the pod shop/far by vethpod"


async def test_a_node_port_is_seen_as_the_node() -> None:
    scene = Scene.plain()
    scene.add_service("web", "10.96.0.9", [FAR], port=80, node_port=30080)
    document = await scene.trace(N1, 30080)
    assert document.source_seen == "192.0.2.10"
    assert document.hops[-1].action == "hands it to the pod shop/far by vethpod"


async def test_through_an_egress() -> None:
    document = await Scene.with_egress().trace()
    assert (document.verdict, document.source_seen) == (Verdict.DELIVERED, ROUTER)
    assert places(document) == ["pod shop/client", "node n0", "router shop/router", "node n1"]
    assert document.replies == "to router shop/router, which sends them to the pod by fou4_peer"
    assert (await Scene.with_egress().trace(FAR)).source_seen == CLIENT, "what is private goes past it"


def without_routers(scene: Scene) -> None:
    scene.objects[-2][1]["endpoints"] = []


def unreachable(scene: Scene) -> None:
    [inside] = scene.namespaces["n0"]
    kept = [each for each in inside.routes if each.table != 118]
    closed = route("0.0.0.0/0", 118, None, kind="unreachable")
    scene.namespaces["n0"] = [msgspec.structs.replace(inside, routes=(*kept, closed))]


def held_back(scene: Scene) -> None:
    unreachable(scene)
    without_routers(scene)


def no_such_egress(scene: Scene) -> None:
    unreachable(scene)
    del scene.objects[-1]


def blocked_by_nobody_known(scene: Scene) -> None:
    unreachable(scene)


def unknown_to_the_router(scene: Scene) -> None:
    far, router = scene.namespaces["n1"]
    routes = tuple(each for each in router.routes if each.table != 118)
    scene.namespaces["n1"] = [far, msgspec.structs.replace(router, routes=routes)]


def not_a_service(scene: Scene) -> None:
    scene.objects = [entry for entry in scene.objects if entry[0].plural != "services"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without_routers, "held back: Egress internet/nat has no ready router"),
        (held_back, "held back: Egress internet/nat has no ready router"),
        (no_such_egress, "held back: there is no Egress internet/nat"),
        (blocked_by_nobody_known, f"the pod's namespace has no way to {OUTSIDE} (rule 2100, table 118: 0.0.0.0/0)"),
        (
            unknown_to_the_router,
            f"the router shop/router has no tunnel back to {CLIENT}: its agent does not know the pod",
        ),
        (not_a_service, f"the tunnel fou4_peer leads to {EGRESS}, which is no Service"),
    ],
)
async def test_why_it_does_not_pass_an_egress(change: Any, reason: str) -> None:
    scene = Scene.with_egress()
    change(scene)
    document = await scene.trace()
    assert (document.verdict, document.reason, document.source_seen) == (Verdict.STOPPED, reason, "")
    assert document.replies == ""


async def test_by_a_gateway_node() -> None:
    document = await with_eip(MARK).trace()
    assert (document.verdict, document.source_seen) == (Verdict.DELIVERED, EIP)
    assert [hop.at for hop in document.hops] == ["pod shop/client", "node n0", "node n1"]
    assert document.hops[1].action == "wraps it for the gateway node n1 by egress.vxlan"
    assert document.hops[2].by == "EgressGatewayPolicy shop/payments"
    assert document.replies == "to the node n1, which sends them to n0 by its tunnel"


async def test_on_a_gateway_node() -> None:
    document = await with_eip(HERE).trace()
    assert (document.source_seen, document.replies) == (EIP, "to the node n0")


async def test_what_no_policy_is_for_has_its_own_address() -> None:
    assert (await with_eip(MARK).trace(FAR)).source_seen == CLIENT


@pytest.mark.parametrize(
    ("scene", "reason"),
    [
        (with_eip(0x260000FF), "held back: no gateway node carries its policy's address"),
        (with_eip(MARK, alive=False), "held back: the lease of the gateway node n1 has run out"),
        (with_eip(MARK, 0x26000200), "the node n1 does not carry the policy's address (any more)"),
    ],
)
async def test_why_it_does_not_get_its_floating_address(scene: Scene, reason: str) -> None:
    document = await scene.trace()
    assert document.verdict is Verdict.STOPPED
    assert document.reason.startswith(reason)


async def test_a_node_does_not_send_as_a_pod_of_another() -> None:
    scene = with_eip(MARK)
    scene.tables["n1"] = eip_tables(HERE, sender=MARK)
    assert "it drops the packet" in (await scene.trace()).reason
    scene = with_eip(MARK)
    scene.objects = [each for each in scene.objects if each[1].get("status") != {"mark": hex(SENDER)}]
    assert "the EgressTunnel of node n0 has no mark" in (await scene.trace()).reason


async def test_a_pod_that_the_agent_does_not_know_is_held_back() -> None:
    scene = with_eip(MARK)
    tables = eip_tables(MARK)
    tables[0] = nft_map("class4")
    tables[3] = nft_map("guarded4", {"prefix": {"addr": "203.0.113.0", "len": 24}}, kind="set")
    tables[-1] = nft_map("current", kind="set")
    scene.tables["n0"] = [*tables, nft_map("known4", kind="set")]
    document = await scene.trace()
    assert document.reason.startswith("held back: the agent on n0 does not know yet")


async def test_a_service_that_nobody_serves() -> None:
    scene = Scene.plain()
    scene.add_service("web", "10.96.0.9", [], port=80)
    assert (await scene.trace("10.96.0.9")).reason == "the Service shop/web has no ready endpoint"
    assert (await scene.trace("10.96.0.9", 81)).reason == "the Service shop/web has no port 81/TCP"
    assert "name one" in (await scene.trace("10.96.0.9", None)).reason


async def test_nodes_that_send_it_to_each_other() -> None:
    scene = Scene.plain()
    host = scene.hosts["n1"]
    kept = [each for each in host.routes if each.hops[0].link != 20]
    back = route(f"{FAR}/32", 116, 2, gateway="192.0.2.10")
    scene.hosts["n1"] = msgspec.structs.replace(host, routes=(*kept, back))
    assert "in circles" in (await scene.trace(FAR)).reason


async def test_a_pod_to_whose_node_there_is_no_route() -> None:
    """It goes where all goes that has no route of its own, which may be right."""
    scene = Scene.plain()
    host = scene.hosts["n0"]
    kept = tuple(each for each in host.routes if each.destination != "10.0.1.0/24")
    scene.hosts["n0"] = msgspec.structs.replace(host, routes=kept)
    document = await scene.trace(FAR)
    assert (document.verdict, document.hops[-1].action) == (Verdict.DELIVERED, "sends it out by eth0")
    assert document.doubts == (f"{FAR} is the pod shop/far on n1, and the next hop is no node",)


async def test_a_node_that_does_not_answer_leaves_the_answer_open() -> None:
    scene = Scene.plain()
    scene.silent = {"n1"}
    document = await scene.trace(FAR)
    assert (document.verdict, document.reason) == (Verdict.UNKNOWN, "the node n1 could not be asked: it is silent")
    assert len(document.hops) == 2


async def test_a_family_that_the_pod_does_not_have() -> None:
    assert (await Scene.plain().trace("2001:db8::1")).reason == "the pod shop/client has no IPv6 address"


async def test_translations_by_others_are_told() -> None:
    scene = Scene.plain()
    statement = {"family": "ip", "table": "nat", "chain": "POSTROUTING", "expr": [{"masquerade": None}]}
    scene.tables["n0"] = [{"rule": statement}]
    assert (await scene.trace()).doubts == ("the table ip nat of n0 translates sources",)


async def test_a_pod_on_its_node_s_network() -> None:
    scene = Scene.plain()
    scene.pods["client"] = pod("client", "n0", "192.0.2.10")
    scene.pods["client"]["spec"]["hostNetwork"] = True
    document = await scene.trace()
    assert (document.source_seen, document.hops[0].action) == ("192.0.2.10", "sends as its node")


async def test_behind_another_cni_plugin_where_no_coild_sees_the_pods_namespaces() -> None:
    scene = Scene.plain()
    scene.namespaces = {"n0": [], "n1": []}
    for node, host in scene.hosts.items():
        links = tuple(msgspec.structs.replace(each, alias="") for each in host.links)
        scene.hosts[node] = msgspec.structs.replace(host, links=links)
    document = await scene.trace(FAR)
    assert (document.verdict, document.source_seen) == (Verdict.DELIVERED, CLIENT)
    assert document.hops[-1].action == "hands it to the pod shop/far by vethpod"
    assert document.doubts == ("the routes of the pod itself, which nothing on n0 can read",)


async def test_a_pod_that_the_node_does_not_have() -> None:
    scene = Scene.plain()
    scene.namespaces["n0"] = [pod_namespace("10.0.0.99", peer=20)]
    assert (await scene.trace()).reason == f"no network namespace on n0 has the address {CLIENT}"


async def test_translations_do_not_concern_a_packet_that_leaves_by_a_tunnel() -> None:
    scene = with_eip(MARK)
    statement = {"family": "ip", "table": "nat", "chain": "POSTROUTING", "expr": [{"masquerade": None}]}
    scene.tables["n0"] = [*scene.tables["n0"], {"rule": statement}]
    document = await scene.trace()
    assert (document.source_seen, document.doubts) == (EIP, ())
