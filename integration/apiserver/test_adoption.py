"""A node that Coil v2's Go programs have served until now: ours take their place, and no pod notices.

The state is that of `integration.go_coild`, for each way in which Go's coild has wired pods.
"""

import json
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from coil.kernel.link import LinkGroup
from integration.apiserver.bare_node import NAME, UPLINK_MTU, BareNode
from integration.apiserver.conversation import converse
from integration.apiserver.plane_pool import PlanePool
from integration.apiserver.refusal_log import missing_rights
from integration.apiserver.runtime import CniError, Runtime, addresses_of
from integration.apiserver.sandbox import PodName, Sandbox
from integration.change_monitor import ChangeMonitor, watch_changes
from integration.cluster.control_plane import ControlPlane
from integration.deployment import apply
from integration.go_coild import (
    Generation,
    GoCoild,
    GoPod,
    block_document,
    pool_document,
    request_document,
    request_status,
)
from integration.kernel_state import EXPORT_TABLE, POD_TABLE
from integration.patience import wait_until
from integration.service import Service
from integration.tcp_stream import TcpStream, flow

pytestmark = pytest.mark.apiserver

State = dict[str, Any]

BITS = 3
POD_GROUP = str(int(LinkGroup.POD))
POOLS = {"default": {"ipv4": "10.91.0.0/26", "ipv6": "fd91::/122"}, "v4": {"ipv4": "10.92.0.0/27"}}
BLOCKS = {
    "default-0": {"ipv4": "10.91.0.0/29", "ipv6": "fd91::/125"},
    "default-3": {"ipv4": "10.91.0.24/29", "ipv6": "fd91::18/125"},
    "v4-1": {"ipv4": "10.92.0.8/29"},
}
EMPTY = "default-3"
"""Its last pod went while no coild ran."""
PODS = {
    "first": ("default", ("10.91.0.1/32", "fd91::1/128")),
    "second": ("default", ("10.91.0.6/32", "fd91::6/128")),
    "doomed": ("default", ("10.91.0.7/32", "fd91::7/128")),
    "lonely": ("v4", ("10.92.0.8/32",)),
}
NAMESPACES = {"apps": "default", "v4": "v4"}


@dataclass
class AdoptedNode:
    """The node, `before` ours came and with ours running; monitors and streams have run all the time."""

    node: BareNode
    runtime: Runtime
    generation: Generation
    pods: dict[str, GoPod] = field(default_factory=dict)
    sandboxes: dict[str, Sandbox] = field(default_factory=dict)
    before: State = field(default_factory=dict)
    monitors: dict[str, ChangeMonitor] = field(default_factory=dict)
    streams: list[TcpStream] = field(default_factory=list)
    coild: Service = field(init=False)
    controller: Service = field(init=False)

    def address(self, pod: str, version: int) -> str:
        """Without the length of its prefix."""
        [found] = [text for text in self.pods[pod].addresses if ip_network(text).version == version]
        return found.partition("/")[0]

    def state(self) -> State:
        """Links, addresses, routes, rules and neighbours for ever, of the node and of each pod."""
        places = {"node": self.node.kernel} | {name: box.kernel for name, box in self.sandboxes.items()}
        found: State = {}
        for name, kernel in places.items():
            links = kernel.ip("address", "show")
            found[name] = {
                "links": [_lasting(link) for link in links],
                "routes": {family: kernel.ip(family, "route", "show", "table", "all") for family in ("-4", "-6")},
                "rules": {family: kernel.ip(family, "rule", "show") for family in ("-4", "-6")},
                "neighbours": kernel.ip("neigh", "show", "nud", "permanent"),
            }
        return found

    def blocks(self) -> dict[str, dict[str, Any]]:
        return {block["metadata"]["name"]: block for block in self.node.objects("addressblocks")}

    def new_pod(self, namespace: str) -> Sandbox:
        pod = PodName(namespace, f"pod-{secrets.token_hex(3)}")
        return self.node.make_sandbox(pod, container_id=secrets.token_hex(32))


def _lasting(link: dict[str, Any]) -> dict[str, Any]:
    """Without the lifetimes that run down, of which the addresses here have none but for ever."""
    return {key: value for key, value in link.items() if key != "stats64"}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(Generation.LINK_LOCAL, marks=pytest.mark.slow),
        pytest.param(Generation.NODE_ADDRESS, marks=pytest.mark.slow),
        Generation.NO_QUEUE,
    ],
    ids=lambda generation: generation.value,
)
def adopted(planes: PlanePool, request: pytest.FixtureRequest) -> Iterator[AdoptedNode]:
    with planes.lend() as plane, BareNode.up(plane) as node, ExitStack() as undo:
        go = GoCoild(node.kernel, request.param, (str(node.ipv4), str(node.ipv6)), UPLINK_MTU)
        for name, pool in NAMESPACES.items():
            node.make_namespace(name, pool="" if pool == "default" else pool)
        leave_objects(node)
        go.start()
        go.export(*(network for networks in BLOCKS.values() for network in networks.values()))
        adopted = AdoptedNode(node, node.install_plugin(), request.param)
        for name, (pool, addresses) in PODS.items():
            namespace = next(space for space, chosen in NAMESPACES.items() if chosen == pool)
            sandbox = node.make_sandbox(PodName(namespace, name), container_id=secrets.token_hex(32))
            sandbox.kernel.run("ip", "link", "set", "lo", "up")
            adopted.pods[name] = GoPod(pool, sandbox.container_id, addresses)
            adopted.sandboxes[name] = sandbox
            go.attach(adopted.pods[name], sandbox.kernel)
        adopted.streams = [undo.enter_context(flow(*ends)) for ends in stream_ends(adopted)]
        adopted.before = adopted.state()
        places = {"node": node.kernel.netns} | {name: box.netns for name, box in adopted.sandboxes.items()}
        adopted.monitors = {name: undo.enter_context(watch_changes(path)) for name, path in places.items()}
        adopted.controller = node.start_controller()
        adopted.coild = node.start_coild("--cooling=500ms", "--addressblock-gc-interval=200ms")
        # Its own starts and sweeps are part of what nobody may notice.
        wait_until(lambda: EMPTY not in adopted.blocks(), what="the block without a pod is given back")
        wait_until(lambda: not node.objects("blockrequests"), what="the forgotten request goes")
        yield adopted
        for service in (adopted.controller, adopted.coild):
            assert missing_rights(service.process.log) == []


def leave_objects(node: BareNode) -> None:
    """What Go's controllers and coild have in the API server."""
    plane = node.plane
    apply(plane, *(pool_document(name, BITS, [subnets]) for name, subnets in POOLS.items()))
    owners = {name: uid_of(plane, "addresspool", name) for name in POOLS}
    for name, networks in BLOCKS.items():
        pool, _, index = name.rpartition("-")
        request = secrets.token_hex(16) if pool == "default" else ""
        apply(
            plane,
            block_document(pool, int(index), node=NAME, pool_uid=owners[pool], networks=networks, request=request),
        )
    forgotten = request_document("default", node=NAME, node_uid=uid_of(plane, "node", NAME))
    apply(plane, forgotten)
    patch = f"--patch={json.dumps({'status': request_status('default-0')})}"
    name = forgotten["metadata"]["name"]
    plane.kubectl("patch", "blockrequest", name, "--subresource=status", "--type=merge", patch)


def uid_of(plane: ControlPlane, kind: str, name: str) -> str:
    return plane.kubectl("get", kind, name, "--output=jsonpath={.metadata.uid}")


def stream_ends(adopted: AdoptedNode) -> list[tuple[str, str, str]]:
    """Between two pods in both families, and from the node to a pod."""
    first, second = adopted.sandboxes["first"].netns, adopted.sandboxes["second"].netns
    return [
        (first, second, adopted.address("second", 4)),
        (second, first, adopted.address("first", 6)),
        (adopted.node.kernel.netns, adopted.sandboxes["lonely"].netns, adopted.address("lonely", 4)),
    ]


def exported(name: str) -> set[str]:
    return set(BLOCKS[name].values())


def test_nothing_of_the_pods_has_changed(adopted: AdoptedNode) -> None:
    after = adopted.state()
    for pod in PODS:
        assert after[pod] == adopted.before[pod]
    # But the mark of pods' links, which other programs do not give them.
    marked = {link["ifname"] for link in after["node"]["links"] if link["group"] == POD_GROUP}
    assert len(marked) == len(PODS)
    ungrouped = [{**link, "group": "default"} for link in after["node"]["links"]]
    assert ungrouped == adopted.before["node"]["links"]
    assert after["node"]["neighbours"] == adopted.before["node"]["neighbours"]
    assert after["node"]["rules"] == adopted.before["node"]["rules"]
    for family in ("-4", "-6"):
        others = [
            [route for route in state["node"]["routes"][family] if str(route.get("table")) != EXPORT_TABLE]
            for state in (adopted.before, after)
        ]
        assert others[0] == others[1]
    wanted = set().union(*(exported(name) for name in BLOCKS if name != EMPTY))
    assert set(adopted.node.kernel.destinations(EXPORT_TABLE)) == wanted


def test_nothing_was_otherwise_even_for_an_instant(adopted: AdoptedNode) -> None:
    """But the exported routes: that of the empty block is withdrawn, and the others may be replaced in one step. Pods'
    links get their mark.
    """
    for place, monitor in adopted.monitors.items():
        lines = [line for line in monitor.lines() if f" table {EXPORT_TABLE} " not in f"{line} "]
        assert [line for line in lines if f" group {POD_GROUP} " not in line] == [], place
    withdrawn = [line for line in adopted.monitors["node"].lines() if line.startswith("Deleted")]
    assert {word for line in withdrawn for word in line.split() if "/" in word} <= exported(EMPTY)


def test_connections_go_on(adopted: AdoptedNode) -> None:
    for stream in adopted.streams:
        seen = stream.count()
        wait_until(lambda stream=stream, seen=seen: stream.count() > seen + 10, what="messages come back")  # type: ignore[misc]


def test_the_addresses_are_in_the_ledger(adopted: AdoptedNode) -> None:
    metrics = adopted.node.coild_metrics()
    assert metrics['coil_node_blocks{pool="default"}'] == 1
    assert metrics['coil_node_addresses{pool="default",state="allocated"}'] == 3
    assert metrics['coil_node_addresses{pool="v4",state="allocated"}'] == 1


def test_the_objects_stay_as_they_are(adopted: AdoptedNode) -> None:
    blocks = adopted.blocks()
    assert set(blocks) == set(BLOCKS) - {EMPTY}
    for name, networks in BLOCKS.items():
        if name != EMPTY:
            assert {family: blocks[name][family] for family in networks} == networks
            assert blocks[name]["metadata"]["labels"]["coil.cybozu.com/node"] == NAME


@pytest.mark.parametrize("pod", ["first", "second", "lonely"])
def test_a_check_finds_an_adopted_pod_whole(adopted: AdoptedNode, pod: str) -> None:
    adopted.runtime.check(adopted.sandboxes[pod], cached=cached_result(adopted, pod))


def cached_result(adopted: AdoptedNode, pod: str) -> dict[str, Any]:
    """What the runtime has kept of the ADD, as Go's coild has answered it."""
    sandbox, wired = adopted.sandboxes[pod], adopted.pods[pod]
    eth0, host = sandbox.kernel.link("eth0"), adopted.node.kernel.link(wired.host_link)
    assert eth0 is not None
    assert host is not None
    return {
        "cniVersion": "1.0.0",
        "interfaces": [
            {"name": "eth0", "mac": eth0["address"], "sandbox": sandbox.netns},
            {"name": wired.host_link, "mac": host["address"]},
        ],
        "ips": [{"interface": 0, "address": address} for address in wired.addresses],
        "dns": {},
    }


def test_an_add_that_is_repeated_leaves_an_adopted_pod_alone(adopted: AdoptedNode) -> None:
    before = adopted.state()
    result = adopted.runtime.add(adopted.sandboxes["first"])
    assert addresses_of(result) == [adopted.address("first", 4), adopted.address("first", 6)]
    assert adopted.state() == before


def test_new_pods_get_other_addresses_and_reach_the_old_ones(adopted: AdoptedNode) -> None:
    taken = {text.partition("/")[0] for pod in adopted.pods.values() for text in pod.addresses}
    fresh = [adopted.new_pod("apps") for _ in range(6)]
    given = [addresses_of(adopted.runtime.add(pod)) for pod in fresh]
    flat = [address for pair in given for address in pair]
    assert len(set(flat)) == len(flat)
    assert not taken & set(flat)
    # The block that was there is filled first, around the pods that live in it.
    assert sum(ip_address(address) in ip_network("10.91.0.0/29") for address in flat) == 5
    for version in (4, 6):
        [own] = [address for address in given[0] if ip_address(address).version == version]
        seen = converse(fresh[0].netns, adopted.sandboxes["first"].netns, adopted.address("first", version))
        assert seen == own
    for pod in fresh:
        adopted.runtime.delete(pod)


def test_an_adopted_pod_is_deleted_like_any_other(adopted: AdoptedNode) -> None:
    doomed = adopted.sandboxes["doomed"]
    link = adopted.pods["doomed"].host_link
    kept = cached_result(adopted, "doomed")
    adopted.runtime.delete(doomed, cached=kept)
    assert adopted.node.kernel.link(link) is None
    left = adopted.node.kernel.destinations(POD_TABLE)
    assert not {text for text in adopted.pods["doomed"].addresses if text in left}
    adopted.runtime.delete(doomed)
    adopted.sandboxes.pop("doomed")
    with pytest.raises(CniError, match="has no attachment"):
        adopted.runtime.check(doomed, cached=kept)
    metrics = adopted.node.coild_metrics()
    assert metrics['coil_node_addresses{pool="default",state="allocated"}'] == 2


def test_the_last_adopted_pod_of_a_block_takes_it_along(adopted: AdoptedNode) -> None:
    lonely = adopted.sandboxes.pop("lonely")
    adopted.streams.pop()
    adopted.runtime.delete(lonely)
    wait_until(lambda: "v4-1" not in adopted.blocks(), what="the block of v4 is given back")
    wait_until(
        lambda: not exported("v4-1") & set(adopted.node.kernel.destinations(EXPORT_TABLE)), what="and its route goes"
    )
    for stream in adopted.streams:
        stream.count()


def test_coild_that_is_killed_adopts_them_again(adopted: AdoptedNode) -> None:
    before = adopted.state()
    adopted.coild.crash()
    adopted.coild.wait_ready()
    adopted.runtime.check(adopted.sandboxes["first"], cached=cached_result(adopted, "first"))
    assert adopted.state() == before
    for stream in adopted.streams:
        stream.count()
