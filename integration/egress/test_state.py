"""What `ip` and `nft` print on both sides of the tunnels is what the specification says, to the letter."""

import json
import socket
import sys
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from integration.egress.external_host import NETWORKS
from integration.egress.pod import RunningPod
from integration.egress.test_packet_path import PORT, TTL, versions
from integration.egress.world import EgressUnderTest, World
from integration.go_coild import tunnel_link
from integration.kernel_state import KernelState
from integration.patience import wait_until

pytestmark = pytest.mark.kernel

UPLINK_MTU = 1500
MTU = {4: 1472, 6: 1452}
KIND = {4: "ipip", 6: "ip6tnl"}
PROTOCOL = "30"

COMMON_RULES = {"0: from all lookup local", "32766: from all lookup main"}
DEFAULT_RULES = {4: {"32767: from all lookup default"}, 6: set[str]()}
CLIENT_RULES = {
    4: {
        "1800: from all to 169.254.0.0/16 lookup main proto 30",
        "1900: from all lookup 117 proto 30",
        "2000: from all to 10.0.0.0/8 lookup main proto 30",
        "2001: from all to 172.16.0.0/12 lookup main proto 30",
        "2002: from all to 192.168.0.0/16 lookup main proto 30",
        "2100: from all lookup 118 proto 30",
    },
    6: {
        "1800: from all to fe80::/10 lookup main proto 30",
        "1900: from all lookup 117 proto 30",
        "2000: from all to fc00::/7 lookup main proto 30",
        "2100: from all lookup 118 proto 30",
    },
}


def rules(kernel: KernelState, version: int) -> set[str]:
    """The lines of `ip rule`, words between single blanks."""
    lines = {" ".join(line.split()) for line in kernel.run("ip", f"-{version}", "rule").splitlines()}
    return lines - COMMON_RULES - DEFAULT_RULES[version]


def check_tunnel(kernel: KernelState, version: int, *, local: str, remote: str) -> None:
    """The device of a tunnel is there, up, and as it should be."""
    link = kernel.link(tunnel_link(remote))
    assert link is not None, [each["ifname"] for each in kernel.ip("link")]
    assert "UP" in link["flags"]
    assert link["mtu"] == MTU[version]
    info = link["linkinfo"]
    assert info["info_kind"] == KIND[version]
    data = info["info_data"]
    assert (data["local"], data["remote"], data["ttl"]) == (local, remote, TTL)
    encapsulation = data["encap"]
    assert (encapsulation["type"], encapsulation["sport"], encapsulation["dport"]) == ("fou", PORT, PORT)


def check_common(kernel: KernelState) -> None:
    """The ports that unwrap, and the flow-based devices."""
    uplink = kernel.link("eth0")
    assert uplink is not None
    assert uplink["mtu"] == UPLINK_MTU
    ports = json.loads(kernel.run("ip", "-json", "fou", "show"))
    assert {(port["port"], port["ipproto"]) for port in ports} == {(PORT, 4), (PORT, 41)}
    for version, name in ((4, "coil_ipip4"), (6, "coil_ipip6")):
        link = kernel.link(name)
        assert link is not None
        assert "UP" in link["flags"]
        assert link["linkinfo"]["info_kind"] == KIND[version]
        assert link["linkinfo"]["info_data"]["external"] is True
    names = {link["ifname"] for link in kernel.ip("link")}
    assert not names & {"tunl0", "ip6tnl0"}
    assert {"coil_tunl", "coil_ip6tnl"} <= names


@versions
def test_the_client(egress: EgressUnderTest, client: RunningPod, version: int) -> None:
    kernel = client.kernel
    check_common(kernel)
    service = egress.addresses[version]
    check_tunnel(kernel, version, local=client.addresses[version], remote=service)
    assert rules(kernel, version) == CLIENT_RULES[version]
    assert table(kernel, version, 118) == {(NETWORKS[version], tunnel_link(service), PROTOCOL)}
    assert table(kernel, version, 117) == set()


def test_the_clusters_own_networks_are_not_for_the_tunnel(
    world: World, egress: EgressUnderTest, client: RunningPod
) -> None:
    """coild is told of them by a ConfigMap, also while the pod runs, and after its own start."""
    places = "/api/v1/namespaces/kube-system/configmaps"
    networks = {version: part_of(NETWORKS[version]) for version in NETWORKS}
    document = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "coil-cluster-networks"},
        "data": {"networks": "\n".join(networks.values())},
    }

    def thrown(version: int) -> list[str]:
        routes = client.kernel.run("ip", f"-{version}", "route", "show", "table", "118", "type", "throw")
        return [line.split()[1] for line in routes.splitlines()]

    with client.station.coild_with("--cluster-networks=kube-system/coil-cluster-networks"):
        assert [thrown(version) for version in networks] == [[], []]
        world.api.create(places, document)
        try:
            for version, network in networks.items():
                wait_until(lambda: thrown(version) == [network], what="they are out of the tunnel")  # noqa: B023
        finally:
            world.api.delete(f"{places}/coil-cluster-networks")
    # The pod is other tests' as well.
    for version in networks:
        wait_until(lambda: thrown(version) == [], what="all is for the tunnel again")  # noqa: B023


def part_of(network: str) -> str:
    """Half of it."""
    first, _ = ip_network(network).subnets()
    return str(first)


@versions
def test_a_second_reader_sees_both_ends(egress: EgressUnderTest, client: RunningPod, version: int) -> None:
    """coil-node-dump, by pyroute2."""
    [router] = egress.routers()
    for pod, remote in ((client, egress.addresses[version]), (router, client.addresses[version])):
        command = [sys.executable, "-m", "coil_node_dump", "--parts=node,fou,tables", "--inspect-page-addr=off"]
        document = json.loads(pod.kernel.run(*command))
        assert document["troubles"] == []
        ports = {(port["port"], port["family"], port["protocol"]) for port in document["fouPorts"]}
        assert ports == {(PORT, socket.AF_INET, 4), (PORT, socket.AF_INET6, 41)}
        [tunnel] = [link for link in document["node"]["links"] if link["name"] == tunnel_link(remote)]
        assert (tunnel["kind"], tunnel["mtu"]) == (KIND[version], MTU[version])
        assert remote in tunnel["info"].values()
        routes = [route for route in document["node"]["routes"] if route["table"] == 118]
        assert any(hop["link"] == tunnel["index"] for route in routes for hop in route["hops"])


@versions
def test_the_router(egress: EgressUnderTest, client: RunningPod, version: int) -> None:
    [router] = egress.routers()
    kernel = router.kernel
    check_common(kernel)
    own = client.addresses[version]
    check_tunnel(kernel, version, local=router.addresses[version], remote=own)
    assert rules(kernel, version) == {"2000: from all iif eth0 lookup 118 proto 30"}
    assert (own, tunnel_link(own), PROTOCOL) in table(kernel, version, 118)
    assert kernel.sysctl("net/ipv4/ip_forward") == kernel.sysctl("net/ipv6/conf/all/forwarding") == "1"
    assert kernel.sysctl("net/ipv4/conf/all/rp_filter") == kernel.sysctl("net/ipv4/conf/default/rp_filter") == "0"


def test_the_routers_packet_filter(egress: EgressUnderTest) -> None:
    [router] = egress.routers()
    entries: list[dict[str, Any]] = json.loads(router.kernel.run("nft", "-j", "list", "ruleset"))["nftables"]
    chains = {entry["chain"]["name"]: entry["chain"] for entry in entries if "chain" in entry}
    assert {(chain["type"], chain["hook"], chain["prio"]) for chain in chains.values() if "hook" in chain} == {
        ("filter", "prerouting", -300),
        ("filter", "forward", 0),
        ("nat", "postrouting", 100),
    }
    statements = [json.dumps(entry["rule"]["expr"]) for entry in entries if "rule" in entry]
    for address in router.addresses.values():
        [masquerade] = [text for text in statements if '"masquerade"' in text and address in text]
        assert '"oifname"' in masquerade
        assert '"op": "!="' in masquerade
    assert len([text for text in statements if '"drop"' in text and '"invalid"' in text]) == 2
    counters = {entry["counter"]["name"] for entry in entries if "counter" in entry}
    assert len(counters) == 8


def test_the_agents_process(egress: EgressUnderTest) -> None:
    """One capability, and no way to another."""
    [router] = egress.routers()
    with Path(f"/proc/{router.agent}/status").open() as status:
        fields = dict(line.rstrip("\n").split(":\t", 1) for line in status if ":\t" in line)
    net_admin = 1 << 12
    assert {int(fields[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")} == {net_admin}
    assert fields["NoNewPrivs"].strip() == "1"


def table(kernel: KernelState, version: int, number: int) -> set[tuple[str, str, str]]:
    """Destination, device and protocol of each route in a table."""
    found = kernel.ip(f"-{version}", "route", "show", "table", "all")
    routes = [route for route in found if str(route.get("table")) == str(number)]
    return {(route["dst"], route["dev"], str(route["protocol"])) for route in routes}
