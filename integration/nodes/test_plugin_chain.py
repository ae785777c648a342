"""Plugins after Coil in one conflist, under a real kubelet and containerd: Debian's portmap and bandwidth take Coil's
result for what it is, and a pod that goes leaves nothing of theirs.

Both act at the host's end of the pod's veth: portmap by the pod's addresses, bandwidth by the interface in the result.
"""

import json
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.cluster.node import Node, NodeCommandError
from integration.cluster.requirement import CNI_PLUGINS
from integration.demo.reach import FETCH, TRY_FETCH
from integration.demo.workload import PORT, server_container
from integration.helm.release import COILD
from integration.kernel_state import POD_TABLE, KernelState
from integration.nodes.coil_cluster import CoilCluster, Room
from integration.patience import wait_until_clean

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

HOST_PORT = 18080
INGRESS, EGRESS = 1_000_000, 2_000_000
"""Bytes in a second. The annotations say it in bits."""
PLUGINS = ("portmap", "bandwidth")
AFTER = [
    {"type": "portmap", "snat": True, "capabilities": {"portMappings": True}},
    {"type": "bandwidth", "capabilities": {"bandwidth": True}},
]
ADDRESSES = {4: "ipv4", 6: "ipv6"}
IPTABLES = ("iptables", "ip6tables")


@pytest.fixture(scope="module")
def chain(coil: CoilCluster) -> Iterator[CoilCluster]:
    """The cluster, with the chain on both nodes, as the chart's `cni.after` puts it there."""
    copies = [Path(shutil.copy2(CNI_PLUGINS / name, node.cni_bin_dir)) for name in PLUGINS for node in coil.nodes]
    coil.release.upgrade({"cni.after": AFTER})
    coil.release.wait_rolled_out(COILD)
    await_configuration(coil, lambda node: runtime_knows(node, "portmap"))
    yield coil
    coil.release.upgrade({})
    coil.release.wait_rolled_out(COILD)
    await_configuration(coil, lambda node: not runtime_knows(node, "portmap"))
    for copy in copies:
        copy.unlink()
    # portmap's own chains, which every host port goes through, are there to stay.
    for kernel in map(coil.kernel, coil.nodes):
        for command in IPTABLES:
            forget_portmap(kernel, command)


@pytest.fixture(scope="module")
def room(chain: CoilCluster) -> Iterator[Room]:
    """The pod in question, another one on its node, and one on the other node."""
    here, there = chain.nodes
    with chain.room() as opened:
        opened.run(published(opened, "published", here), opened.pod("near", here), opened.pod("far", there))
        yield opened


@pytest.fixture
def as_in_coil_v2(chain: CoilCluster) -> Iterator[CoilCluster]:
    """With the version and the plugins of Coil v2's configuration, as docs/upgrade.md keeps them."""
    chain.release.upgrade({"cni.version": "0.4.0", "cni.after": AFTER[:1]})
    chain.release.wait_rolled_out(COILD)
    await_configuration(chain, lambda node: runtime_knows(node, "0.4.0"))
    yield chain
    chain.release.upgrade({"cni.after": AFTER})
    chain.release.wait_rolled_out(COILD)
    await_configuration(chain, lambda node: runtime_knows(node, "bandwidth"))


def await_configuration(coil: CoilCluster, is_read: Callable[[Node], bool]) -> None:
    """Until containerd has read what the installer has written last, on every node."""
    wait_until_clean(lambda: [node.name for node in coil.nodes if not is_read(node)], after="an upgrade")


def runtime_knows(node: Node, text: str) -> bool:
    """Whether the configuration that containerd has read has this text in it, such as a plugin's name.

    RuntimeService.Status of the CRI, asked with `verbose`: the answer has the configuration's text in it.
    """
    with grpc.insecure_channel(f"unix:{node.containerd_socket}") as channel:
        status = channel.unary_unary("/runtime.v1.RuntimeService/Status")
        answer: bytes = status(b"\x08\x01", timeout=60)
    assert b"k8s-pod-network" in answer
    return text.encode() in answer


def published(room: Room, name: str, node: Node) -> dict[str, Any]:
    """A server with a host port and a limit in each direction."""
    container = {**server_container(), "ports": [{"containerPort": PORT, "hostPort": HOST_PORT}]}
    pod = room.pod(name, node, containers=[container])
    pod["metadata"]["annotations"] = {
        "kubernetes.io/ingress-bandwidth": str(8 * INGRESS),
        "kubernetes.io/egress-bandwidth": str(8 * EGRESS),
    }
    return pod


def node_url(node: Node, version: int) -> str:
    """The host port at the node's address."""
    return f"http://{node.ipv4 if version == 4 else f'[{node.ipv6}]'}:{HOST_PORT}/name"


@pytest.mark.parametrize("version", ADDRESSES)
def test_the_host_port_leads_to_the_pod_from_both_nodes(chain: CoilCluster, room: Room, version: int) -> None:
    here, there = chain.nodes
    for asking in (there, here):
        assert asking.run([*FETCH, node_url(here, version)]) == "published\n"
    with pytest.raises(NodeCommandError):
        here.run([*TRY_FETCH, node_url(there, version)])


def test_the_host_port_is_on_the_nodes_loopback_too(chain: CoilCluster, room: Room) -> None:
    # portmap does that for IPv4 only: of ::1 the kernel lets nothing out.
    assert chain.nodes[0].run([*FETCH, f"http://127.0.0.1:{HOST_PORT}/name"]) == "published\n"


@pytest.mark.parametrize("version", ADDRESSES)
@pytest.mark.parametrize("pod", ["near", "far", "published"])
def test_the_host_port_leads_to_the_pod_from_pods_itself_included(
    chain: CoilCluster, room: Room, pod: str, version: int
) -> None:
    assert room.kubectl("exec", pod, "--", *FETCH, node_url(chain.nodes[0], version)) == "published\n"


def test_every_pod_is_reached_by_its_addresses_as_without_the_chain(room: Room) -> None:
    assert room.find_gaps() == []


def test_the_limits_stand_where_the_pods_traffic_passes(chain: CoilCluster, room: Room) -> None:
    kernel = chain.kernel(chain.nodes[0])
    veth = host_link(kernel, room, "published")
    [ifb] = limiters(kernel)
    before = {link: shaped(kernel, link)["bytes"] for link in (veth, ifb)}
    assert chain.nodes[1].run([*FETCH, node_url(chain.nodes[0], 4)]) == "published\n"
    for link, rate in ((veth, INGRESS), (ifb, EGRESS)):
        qdisc = shaped(kernel, link)
        assert qdisc["options"]["rate"] == rate
        assert qdisc["bytes"] > before[link]
    assert qdiscs(kernel, host_link(kernel, room, "near"), "tbf") == []


def test_nothing_is_left_of_a_pod_that_is_deleted(chain: CoilCluster) -> None:
    node = chain.nodes[1]
    kernel = chain.kernel(node)
    with chain.room() as room:
        room.run(published(room, "gone", node))
        [pod] = room.pods()
        addresses = [address for address in pod.addresses if address]
        link = host_link(kernel, room, "gone")
        assert len(leftovers(kernel, addresses, link)) > 4
        room.kubectl("delete", "pod", "gone", "--timeout=180s")
        wait_until_clean(lambda: leftovers(kernel, addresses, link), after="the pod was deleted")
        # The port is free for the next one.
        room.run(published(room, "next", node))
        for version in ADDRESSES:
            assert chain.nodes[0].run([*FETCH, node_url(node, version)]) == "next\n"
    wait_until_clean(lambda: leftovers(kernel, addresses, link), after="the last one was deleted")


def test_with_the_configuration_of_coil_v2_the_host_port_leads_to_the_pod(as_in_coil_v2: CoilCluster) -> None:
    """portmap is given Coil's result in the version 0.4.0, at ADD and at DEL."""
    # On the first node, another pod may have the port.
    there, here = as_in_coil_v2.nodes
    kernel = as_in_coil_v2.kernel(here)
    with as_in_coil_v2.room() as room:
        room.run(published(room, "as-before", here))
        [pod] = room.pods()
        addresses = [address for address in pod.addresses if address]
        link = host_link(kernel, room, "as-before")
        for version in ADDRESSES:
            for asking in (there, here):
                assert asking.run([*FETCH, node_url(here, version)]) == "as-before\n"
        # It is portmap that has made it lead there, and not coild.
        assert any("CNI-DN-" in rule for rule in leftovers(kernel, addresses, link))
        room.kubectl("delete", "pod", "as-before", "--timeout=180s")
        wait_until_clean(lambda: leftovers(kernel, addresses, link), after="the pod was deleted")


def host_link(kernel: KernelState, room: Room, pod: str) -> str:
    """The host's end of a pod's veth."""
    [address] = [row.ipv4 for row in room.pods() if row.name == pod]
    return kernel.destinations(POD_TABLE)[f"{address}/32"]


def limiters(kernel: KernelState) -> list[str]:
    """The links that bandwidth made, one for each pod with a limit on what it sends."""
    return [link["ifname"] for link in kernel.ip("link", "show", "type", "ifb")]


def qdiscs(kernel: KernelState, link: str, kind: str) -> list[dict[str, Any]]:
    found = json.loads(kernel.run("tc", "-statistics", "-json", "qdisc", "show", "dev", link))
    return [qdisc for qdisc in found if qdisc["kind"] == kind]


def shaped(kernel: KernelState, link: str) -> dict[str, Any]:
    """The token bucket of a link."""
    [qdisc] = qdiscs(kernel, link, "tbf")
    return qdisc


def leftovers(kernel: KernelState, addresses: list[str], link: str) -> list[str]:
    """A line for each thing in the kernel that is this pod's, or that portmap or bandwidth made for any."""
    marks = ("CNI-DN-", f"dport {HOST_PORT}", f"dports {HOST_PORT}", *addresses)
    found = [f"the limiter {name}" for name in limiters(kernel)]
    if kernel.link(link) is not None:
        found.append(f"the link {link}")
    for command in IPTABLES:
        rules = kernel.run(f"{command}-save").splitlines()
        found += [f"{command}: {rule}" for rule in rules if any(mark in rule for mark in marks)]
    for version in ("-4", "-6"):
        routes = kernel.ip(version, "route", "show", "table", "all")
        found += [f"a route to {route['dst']}" for route in routes if route["dst"] in addresses]
    found += [f"the address {address} on the node" for address in kernel.global_addresses() & {*addresses}]
    return found


def forget_portmap(kernel: KernelState, command: str) -> None:
    """Remove the chains that portmap makes for all pods together."""
    rules = [line for line in kernel.run(command, "-t", "nat", "-S").splitlines() if "CNI-HOSTPORT" in line]
    for rule in [line for line in rules if line.startswith("-A ")]:
        kernel.run(command, "-t", "nat", "-D", *shlex.split(rule)[1:])
    for chain in [line for line in rules if line.startswith("-N ")]:
        kernel.run(command, "-t", "nat", "-X", chain.split()[1])
