"""`kubectl coil ipam check` on real nodes: faults that are made on purpose are found there, and no others."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_network
from typing import Any

import pytest

from integration.cluster.node import Node
from integration.nodes.coil_cluster import CoilCluster, Room
from integration.nodes.conftest import OpenRoom
from integration.patience import wait_until

pytestmark = pytest.mark.cluster

POD_TABLE, EXPORT_TABLE, PROTOCOL = "116", "119", "30"
STRANGE_NETWORK = "198.51.100.0/28"
Found = set[tuple[str, str]]


def check(coil: CoilCluster, *, settle: str = "1s") -> tuple[int, dict[str, Any]]:
    """The exit code and the document."""
    command = [sys.executable, "-m", "kubectl_coil", "ipam", "check", "--output=json", f"--settle={settle}"]
    done = subprocess.run(
        [*command, f"--kubeconfig={coil.plane.admin_kubeconfig}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["troubles"] == []
    return done.returncode, document


def find(coil: CoilCluster) -> Found:
    """Kind and subject of each fault that lasts for a moment."""
    _, document = check(coil)
    return {(fault["kind"], fault["subject"]) for fault in document["faults"]}


@contextmanager
def route(node: Node, destination: str, table: str) -> Iterator[None]:
    """A route that looks like coild's."""
    arguments = (destination, "dev", "lo", "table", table, "proto", PROTOCOL)
    node.run(["ip", "route", "add", *arguments])
    try:
        yield
    finally:
        node.run(["ip", "route", "del", *arguments])


def test_nodes_on_which_all_agree_have_no_fault(open_room: OpenRoom, coil: CoilCluster) -> None:
    room = open_room()
    room.run(*(room.pod(f"pod-{node.name}", node) for node in coil.nodes))
    code, document = check(coil, settle="20s")
    assert (code, document["faults"]) == (0, [])
    assert document["nodes"] == len(coil.nodes)


def test_faults_of_a_nodes_routes_are_found(open_room: OpenRoom, coil: CoilCluster) -> None:
    room, node = open_room(), coil.nodes[0]
    room.run(room.pod("pod", node))
    [pod] = room.pods()
    [block] = room.blocks()
    unused = next(each for each in ip_network(block.networks[0]) if str(each) != pod.ipv4)
    with route(node, f"{unused}/32", POD_TABLE), route(node, STRANGE_NETWORK, EXPORT_TABLE):
        assert find(coil) >= {
            ("RouteWithoutAddress", f"address {unused}"),
            ("RouteWithoutBlock", f"network {STRANGE_NETWORK}"),
        }
    wait_until(lambda: find(coil) == set(), what="all agree again")


def test_an_address_that_two_pods_show_is_found(open_room: OpenRoom, coil: CoilCluster) -> None:
    """The second is on a node that nobody runs."""
    room, node = open_room(), coil.nodes[0]
    room.run(room.pod("pod", node))
    [pod] = room.pods()
    room.create(room.pod("twin", node, nodeName="nowhere"))
    show_addresses(room, "twin", pod.addresses)
    found = find(coil)
    assert {("HeldTwice", f"address {address}") for address in pod.addresses} <= found
    assert ("OutsidePool", f"pod {room.namespace}/twin") in found
    room.kubectl("delete", "pod", "twin", "--force", "--grace-period=0")
    wait_until(lambda: find(coil) == set(), what="all agree again")


def show_addresses(room: Room, pod: str, addresses: Sequence[str]) -> None:
    """As a kubelet does."""
    status = {"phase": "Running", "podIP": addresses[0], "podIPs": [{"ip": each} for each in addresses]}
    patch = json.dumps({"status": status})
    room.kubectl("patch", "pod", pod, "--subresource=status", "--type=merge", f"--patch={patch}")
