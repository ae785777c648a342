"""`kubectl coil ipam check` on real nodes: what is made wrong on purpose is found there, and nothing else.

Other tests' pods and blocks may still be on their way out, and coild may put right what is made wrong, so each state is
waited for.
"""

import json
from collections.abc import Sequence
from ipaddress import ip_network

import pytest

from integration.cluster.node import Node
from integration.kubectl_plugin import ask_coil
from integration.nodes.coil_cluster import CoilCluster, Room
from integration.nodes.conftest import OpenRoom
from integration.patience import wait_until

pytestmark = pytest.mark.cluster

POD_TABLE, EXPORT_TABLE, PROTOCOL = "116", "119", "30"
STRANGE_NETWORK = "198.51.100.0/28"
Found = set[tuple[str, str]]


def check(coil: CoilCluster) -> tuple[int, Found, list[str]]:
    """The exit code, kind and subject of each finding that lasts for a moment, and what could not be judged."""
    code, document = ask_coil(coil.plane.admin_kubeconfig, "ipam", "check", "--settle=1s")
    return code, {(each["kind"], each["subject"]) for each in document["findings"]}, document["troubles"]


def await_agreement(coil: CoilCluster) -> None:
    wait_until(lambda: check(coil) == (0, set(), []), what="all agree on the addresses")


def put_route(node: Node, destination: str, table: str) -> None:
    """One that looks like coild's."""
    node.run(["ip", "route", "replace", destination, "dev", "lo", "table", table, "proto", PROTOCOL])


def remove_route(node: Node, destination: str, table: str) -> None:
    """Idempotent."""
    node.run(["ip", "route", "flush", destination, "table", table, "proto", PROTOCOL])


def test_nodes_on_which_all_agree(open_room: OpenRoom, coil: CoilCluster) -> None:
    room = open_room()
    room.run(*(room.pod(f"pod-{node.name}", node) for node in coil.nodes))
    await_agreement(coil)


def test_routes_that_nobody_has_made(open_room: OpenRoom, coil: CoilCluster) -> None:
    room, node = open_room(), coil.nodes[0]
    room.run(room.pod("pod", node))
    [pod] = room.pods()
    [block] = room.blocks()
    unused = next(each for each in ip_network(block.networks[0]) if str(each) != pod.ipv4)
    routes = ((f"{unused}/32", POD_TABLE), (STRANGE_NETWORK, EXPORT_TABLE))
    wanted = {("RouteWithoutAddress", f"address {unused}"), ("RouteWithoutBlock", f"network {STRANGE_NETWORK}")}

    def are_found() -> bool:
        for route in routes:
            put_route(node, *route)
        return wanted <= check(coil)[1]

    try:
        wait_until(are_found, what="both are found")
    finally:
        for route in routes:
            remove_route(node, *route)
    await_agreement(coil)


def test_an_address_that_two_pods_show(open_room: OpenRoom, coil: CoilCluster) -> None:
    """The second is on no node, and nobody schedules it."""
    room, node = open_room(), coil.nodes[0]
    room.run(room.pod("pod", node))
    [pod] = room.pods()
    room.create(room.pod("twin", node, nodeName=None, schedulerName="nobody"))
    show_addresses(room, "twin", pod.addresses)
    code, found, _ = check(coil)
    assert code == 1
    assert {("HeldTwice", f"address {address}") for address in pod.addresses} <= found
    assert ("OutsidePool", f"pod {room.namespace}/twin") in found
    room.kubectl("delete", "pod", "twin", "--force", "--grace-period=0")
    await_agreement(coil)


def show_addresses(room: Room, pod: str, addresses: Sequence[str]) -> None:
    """As a kubelet does."""
    status = {"phase": "Running", "podIP": addresses[0], "podIPs": [{"ip": each} for each in addresses]}
    patch = json.dumps({"status": status})
    room.kubectl("patch", "pod", pod, "--subresource=status", "--type=merge", f"--patch={patch}")
