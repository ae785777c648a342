"""Floating addresses on nodes whose kube-proxy uses IPVS: where the kernel has it, so always in the virtual machine.

Session `kernel_guest`; a kernel that lacks IPVS skips these tests, and the virtual machine fails them.

The state is that of kube-proxy: each ClusterIP is on a link of the node, so packets for it are the node's own; IPVS
takes them where those come in, and sends them to the endpoint as what the node sends itself. The oracle is the address
that the endpoint sees.
"""

import os
import subprocess
from collections.abc import Callable
from ipaddress import ip_address
from socket import IPPROTO_TCP, SO_REUSEADDR, SOL_SOCKET
from typing import Final

import pytest
from pyroute2 import IPVS, IPVSDest, IPVSService

from integration.netns.eip_world import EIPS, LOCAL_POD, POD, SERVER, EipWorld, nft, packets, view
from integration.netns.netns import Netns
from integration.vm.run import INSIDE_VARIABLE

pytestmark = pytest.mark.kernel

CLUSTER_IP: Final = {4: "10.96.0.1", 6: "fd96::1"}
PORT: Final = 7
_LINK: Final = "kube-ipvs0"
_MASQUERADING: Final = 0
"""IP_VS_CONN_F_MASQ, linux/ip_vs.h: the destination is translated."""
_NETMASK: Final = {4: "255.255.255.255", 6: "128.0.0.0"}
"""Of IPv6 it is the length of the prefix, as a number of this machine's order of bytes."""
_SECONDS: Final = 60.0

both_families = pytest.mark.parametrize("version", [4, 6])


@pytest.fixture(autouse=True)
def ipvs(new_netns: Callable[[], Netns]) -> None:
    """Skips where the kernel has none, but for the virtual machine, whose kernel has."""
    subprocess.run(["modprobe", "--quiet", "--all", "ip_vs", "ip_vs_rr"], check=False, timeout=_SECONDS)
    try:
        new_netns().sysctl("net/ipv4/vs/conntrack")
    except OSError:
        if INSIDE_VARIABLE in os.environ:
            raise
        pytest.skip("this kernel has no IPVS")


@pytest.fixture
def world(new_netns: Callable[[], Netns]) -> EipWorld:
    """With a policy for both pods, and kube-proxy on each node."""
    world = EipWorld(new_netns)
    world.hold(*EIPS.values())
    world.tell([view()])
    world.load()
    for node in (world.source, world.gateway):
        node.set_sysctl("net/ipv4/vs/conntrack", "1")
        node.ip("link", "add", _LINK, "type", "dummy")
        for version, address in CLUSTER_IP.items():
            node.ip("address", "add", f"{address}/{32 if version == 4 else 128}", "dev", _LINK)
    return world


def serve(world: EipWorld, version: int, endpoint: str) -> None:
    """Have the Service lead to this one, on each node."""

    def add() -> None:
        service = IPVSService(
            addr=CLUSTER_IP[version],
            port=PORT,
            protocol=IPPROTO_TCP,
            sched_name="rr",
            netmask=_NETMASK[version],
        )
        with IPVS() as ipvs:
            ipvs.service("add", service=service)
            ipvs.dest("add", service=service, dest=IPVSDest(addr=endpoint, port=PORT, fwd_method=_MASQUERADING))

    for node in (world.source, world.gateway):
        node.call(add)


def seen(client: Netns, asked: str, server: Netns, endpoint: str) -> str:
    """The source that the endpoint sees of a connection to the address that was asked."""
    with server.socket(ip_address(endpoint)) as listener, client.socket(ip_address(asked)) as asking:
        listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        listener.bind((endpoint, PORT))
        listener.listen()
        asking.connect((asked, PORT))
        accepted, peer = listener.accept()
        with accepted:
            accepted.sendall(b"answer")
            assert asking.recv(64) == b"answer"
    return str(peer[0])


@both_families
def test_what_is_beyond_the_cluster_sees_the_eip(world: EipWorld, version: int) -> None:
    for pod in (world.pod, world.local_pod):
        assert seen(pod, SERVER[version], world.server, SERVER[version]) == EIPS[version]


@both_families
def test_a_service_of_pods_is_not_the_policys(world: EipWorld, version: int) -> None:
    serve(world, version, LOCAL_POD[version])
    assert seen(world.pod, CLUSTER_IP[version], world.local_pod, LOCAL_POD[version]) == POD[version]


@both_families
def test_a_service_of_what_is_beyond_the_cluster_is_not_the_policys(world: EipWorld, version: int) -> None:
    """The policy sees the ClusterIP, which is the cluster's own: docs/eip-gateway.md says so."""
    serve(world, version, SERVER[version])
    pod, asked, server = world.local_pod, CLUSTER_IP[version], SERVER[version]
    assert seen(pod, asked, world.server, server) == LOCAL_POD[version]
    # From the other node it leaves by the node's own route, which leads to the gateway here, and not by the tunnel.
    nft(
        world.source,
        """
        table inet probe {
          counter tunnelled { }
          chain post { type filter hook postrouting priority 200; oifname egress.vxlan counter name tunnelled; }
        }""",
    )
    assert seen(world.pod, asked, world.server, server)
    assert packets(world.source, "probe") == {"tunnelled": 0}
    assert seen(world.pod, server, world.server, server) == EIPS[version]
    assert packets(world.source, "probe")["tunnelled"] > 0
