"""`kubectl coil ipam check` on real nodes: what is made wrong on purpose is found there, and nothing else.

Other tests' pods and blocks may still be on their way out, and coild may put right what is made wrong, so each state is
waited for.
"""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from ipaddress import ip_address, ip_network

import pytest

from integration.cluster.node import Node
from integration.cluster.node_config import CNI_BIN_DIR
from integration.helm.release import IPAM_CONTROLLER
from integration.kubectl_plugin import ask_coil
from integration.nodes.coil_cluster import CoilCluster, Room
from integration.nodes.conftest import OpenRoom
from integration.patience import wait_until

pytestmark = pytest.mark.cluster

CONTAINER = "coil-test-of-ipam-check"
POD_TABLE, EXPORT_TABLE, PROTOCOL = "116", "119", "30"
REPLICAS = 24
REPLACED, LOOKS = 1000, 10
SETTLE = "15s"
"""The default; the tests of single findings wait for themselves."""
STRANGE_NETWORK = "198.51.100.0/28"
Found = set[tuple[str, str]]


def check(coil: CoilCluster, *flags: str) -> tuple[int, Found, list[str]]:
    """The exit code, kind and subject of each finding, and what could not be judged."""
    code, document = ask_coil(coil.plane.admin_kubeconfig, "ipam", "check", *(flags or ["--settle=1s"]))
    return code, {(each["kind"], each["subject"]) for each in document["findings"]}, document["troubles"]


def await_agreement(coil: CoilCluster) -> None:
    wait_until(lambda: check(coil) == (0, set(), []), what="all agree on the addresses")


def is_found(coil: CoilCluster, *wanted: tuple[str, str]) -> bool:
    return set(wanted) <= check(coil)[1]


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


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_nothing_is_found_while_pods_are_replaced(open_room: OpenRoom, coil: CoilCluster) -> None:
    room = open_room(bits=5)
    labels = {"app": "churn"}
    pod = room.pod("churn", coil.nodes[0], nodeName=None)
    replica_set = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {**pod["metadata"], "labels": labels}}
    # With a grace period of 0, an object would be gone before its pod.
    template = {"metadata": {"labels": labels}, "spec": {**pod["spec"], "terminationGracePeriodSeconds": 1}}
    selector = {"matchLabels": labels}
    room.create({**replica_set, "spec": {"replicas": REPLICAS, "selector": selector, "template": template}})

    def replace_pods() -> int:
        replaced = 0
        while replaced < REPLACED:
            ready = f"--for=jsonpath={{.status.readyReplicas}}={REPLICAS}"
            room.kubectl("wait", "replicaset/churn", ready, "--timeout=300s")
            replaced += len(room.kubectl("delete", "pods", "--all", "--output=name").splitlines())
        return replaced

    looks: list[tuple[int, Found, list[str]]] = []
    with ThreadPoolExecutor(max_workers=1) as pool:
        replacing = pool.submit(replace_pods)
        while not replacing.done():
            looks.append(check(coil, f"--settle={SETTLE}"))
        assert replacing.result() >= REPLACED
    assert len(looks) >= LOOKS
    assert looks == [(0, set(), [])] * len(looks)


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


@contextmanager
def deleted_again_and_again(node: Node, destination: str, table: str) -> Iterator[None]:
    """coild puts its routes back within a second or two."""
    script = f"while ip route flush {destination} table {table} proto {PROTOCOL}; do sleep 0.02; done"
    process = node.spawn("route-deleter", ["sh", "-c", script])
    try:
        yield
    finally:
        process.stop()


def test_routes_that_somebody_deletes(open_room: OpenRoom, coil: CoilCluster) -> None:
    room, node = open_room(), coil.nodes[0]
    room.run(room.pod("pod", node))
    [pod] = room.pods()
    [block] = room.blocks()
    network = next(each for each in block.networks if ip_network(each).version == 4)
    for destination, table, wanted in (
        (f"{pod.ipv4}/32", POD_TABLE, ("AddressWithoutRoute", f"address {pod.ipv4}")),
        (network, EXPORT_TABLE, ("BlockWithoutRoute", f"network {network}")),
    ):
        with deleted_again_and_again(node, destination, table):
            wait_until(partial(is_found, coil, wanted), what=f"{wanted} is found")
        await_agreement(coil)


def call_plugin(node: Node, command: str, *, container: str, namespace: str, pod: str) -> None:
    """As a runtime does."""
    [path] = node.cni_conf_dir.glob("*.conflist")
    conflist = json.loads(path.read_text())
    conf = {**conflist["plugins"][0], "cniVersion": conflist["cniVersion"], "name": conflist["name"]}
    environment = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": container,
        "CNI_NETNS": f"/run/netns/{namespace}" if namespace else "",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": str(CNI_BIN_DIR),
        "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE={pod.partition('/')[0]};K8S_POD_NAME={pod.partition('/')[2]}",
    }
    node.run([str(CNI_BIN_DIR / "coil")], stdin=json.dumps(conf), env=environment)


def test_an_address_of_a_container_that_is_no_pods(open_room: OpenRoom, coil: CoilCluster) -> None:
    """A sandbox that a runtime has forgotten: the kernel has it first, and then only coild, as its route is away."""
    room, node = open_room(), coil.nodes[0]
    room.run(room.pod("pod", node))
    node.run(["ip", "netns", "add", CONTAINER])
    try:
        call_plugin(node, "ADD", container=CONTAINER, namespace=CONTAINER, pod=f"{room.namespace}/pod")
        found: Found = set()

        def are_found() -> bool:
            found.update(each for each in check(coil)[1] if each[0] == "PodGone")
            return bool(found)

        wait_until(are_found, what="an address that no pod shows is found")
        addresses = [subject.removeprefix("address ") for _, subject in found]
        [address] = [each for each in addresses if ip_address(each).version == 4]
        with deleted_again_and_again(node, f"{address}/32", POD_TABLE):
            leaked = ("Leaked", f"address {address}")
            wait_until(lambda: is_found(coil, leaked), what="it is found to be leaked")
    finally:
        call_plugin(node, "DEL", container=CONTAINER, namespace=CONTAINER, pod=f"{room.namespace}/pod")
        node.run(["ip", "netns", "delete", CONTAINER])
    await_agreement(coil)


def test_a_pod_whose_address_was_given_back(open_room: OpenRoom, coil: CoilCluster) -> None:
    """The other pod keeps the node from giving the block back, too."""
    room, node = open_room(), coil.nodes[0]
    room.run(room.pod("other", node), room.pod("pod", node))
    pod = next(each for each in room.pods() if each.name == "pod")
    _, shown = ask_coil(coil.plane.admin_kubeconfig, "ipam", "show", f"pod/{room.namespace}/pod")
    [entry] = shown["ledger"]
    call_plugin(node, "DEL", container=entry["container"], namespace="", pod=f"{room.namespace}/pod")
    wanted = {("NotInLedger", f"address {address}") for address in pod.addresses}
    wait_until(lambda: is_found(coil, *wanted), what="both addresses are found")
    room.kubectl("delete", "pod", "pod", "--force", "--grace-period=0")
    await_agreement(coil)


def test_blocks_of_an_absent_node_and_of_no_coild(open_room: OpenRoom, coil: CoilCluster) -> None:
    """Nobody collects the one while the controller is away; coild takes none that overlaps another of its node."""
    room, node = open_room(), coil.nodes[0]
    room.run(room.pod("pod", node))
    [own] = room.blocks()
    network = next(each for each in own.networks if ip_network(each).version == 4)
    blocks = {
        "gone": {"index": 200, "ipv4": STRANGE_NETWORK, "node": "nobody"},
        "twin": {"index": 201, "ipv4": network, "node": node.name},
    }
    with coil.programs.away("ipam-controller", IPAM_CONTROLLER):
        for name, block in blocks.items():
            labels = {"coil.cybozu.com/pool": room.pool, "coil.cybozu.com/node": block.pop("node")}
            metadata = {"name": f"{room.pool}-{name}", "labels": labels}
            room.create({"apiVersion": "coil.cybozu.com/v2", "kind": "AddressBlock", "metadata": metadata, **block})
        gone, twin = (f"block {room.pool}-{name}" for name in blocks)
        wanted = {("AbsentNode", gone), ("OutsidePool", gone), ("HeldTwice", twin), ("BlockNotInLedger", twin)}
        try:
            wait_until(lambda: is_found(coil, *wanted), what="both are found")
        finally:
            for name in blocks:
                coil.plane.kubectl("delete", "addressblock", f"{room.pool}-{name}")
    await_agreement(coil)


def show_addresses(room: Room, pod: str, addresses: Sequence[str]) -> None:
    """As a kubelet does."""
    status = {"phase": "Running", "podIP": addresses[0], "podIPs": [{"ip": each} for each in addresses]}
    patch = json.dumps({"status": status})
    room.kubectl("patch", "pod", pod, "--subresource=status", "--type=merge", f"--patch={patch}")
