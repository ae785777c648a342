"""A pod, its node, a gateway node with a pod of its own, and a server beyond it: five namespaces, and the overlay
between the nodes as the agents would have made it, made here with iproute2.

pod 10.1.0.2 ── source 10.1.0.1 / 172.16.0.1 ══ tunnel ══ 172.16.0.2 gateway 203.0.113.2 ── server 203.0.113.9, .10
                                                  pod 10.2.0.2 ── 10.2.0.1 ┘
"""

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from coil.crd.egress_gateway import PolicyRef
from coil.crd.names import NodeName
from coil.eip.claim import Eip
from coil.eip.classification import PolicyView
from coil.eip.data_plane import DataPlaneIndex
from coil.eip.decision_cache import REST_SECONDS
from coil.eip.eip_table import POD_TIMEOUTS, TIMEOUTS, EipTableOptions, plan_eip_tables
from coil.eip.tunnel_plan import Peer
from coil.kernel.family import IPAddress
from coil.kernel.link import MacAddress
from coil.nft.element_sync import change_elements, load_elements, refresh_timeouts
from integration.netns.netns import Netns
from integration.patience import wait_until

SOURCE_NODE: Final = NodeName("source")
GATEWAY_NODE: Final = NodeName("gateway")
MARKS: Final = {SOURCE_NODE: 0x26000100, GATEWAY_NODE: 0x26000200}
MACS: Final = {SOURCE_NODE: MacAddress("02:00:00:00:00:01"), GATEWAY_NODE: MacAddress("02:00:00:00:00:02")}
UNDERLAY: Final = {
    SOURCE_NODE: (IPv4Address("172.16.0.1"), IPv6Address("fd16::1")),
    GATEWAY_NODE: (IPv4Address("172.16.0.2"), IPv6Address("fd16::2")),
}
EIPS: Final = {4: "203.0.113.50", 6: "2001:db8::50"}
OTHER_EIPS: Final = {4: "203.0.113.51", 6: "2001:db8::51"}
SERVER: Final = {4: "203.0.113.9", 6: "2001:db8::9"}
OTHER_SERVER: Final = {4: "203.0.113.10", 6: "2001:db8::10"}
GATEWAY: Final = {4: "203.0.113.2", 6: "2001:db8::2"}
POD: Final = {4: "10.1.0.2", 6: "fd01::2"}
LOCAL_POD: Final = {4: "10.2.0.2", 6: "fd02::2"}
CLUSTER: Final = ("10.0.0.0/8", "172.16.0.0/12", "fd00::/8")
REF: Final = PolicyRef(namespace="default", name="policy")
TABLES: Final = plan_eip_tables(EipTableOptions())
_SECONDS: Final = 60.0


def eip(addresses: Mapping[int, str]) -> Eip:
    return Eip(ipv4=IPv4Address(addresses[4]), ipv6=IPv6Address(addresses[6]))


def view(name: str = "policy", **changes: object) -> PolicyView:
    """A policy that the gateway carries with `EIPS`, unless told otherwise."""
    wanted: dict[str, object] = {
        "ref": PolicyRef(namespace="default", name=name),
        "eip": eip(EIPS),
        "node": GATEWAY_NODE,
        **changes,
    }
    return PolicyView(**wanted)  # type: ignore[arg-type]


class EipWorld:
    """`source` and `gateway` are nodes, with an index each."""

    def __init__(self, new_netns: Callable[[], Netns]) -> None:
        self.pod, self.source, self.gateway, self.local_pod, self.server = (new_netns() for _ in range(5))
        for netns in (self.pod, self.source, self.gateway, self.local_pod, self.server):
            for scope in ("all", "default"):  # a link-local address in doubt asks no neighbours
                netns.set_sysctl(f"net/ipv6/conf/{scope}/accept_dad", "0")
        self._now = 0.0
        self.indexes = {node: DataPlaneIndex(clock=lambda: self._now) for node in (SOURCE_NODE, GATEWAY_NODE)}
        self.nodes = {SOURCE_NODE: self.source, GATEWAY_NODE: self.gateway}
        _join(self.source, "pod0", "10.1.0.1/24", "fd01::1/64", self.pod, POD)
        _join(self.gateway, "pod0", "10.2.0.1/24", "fd02::1/64", self.local_pod, LOCAL_POD)
        _join(self.gateway, "eth1", "203.0.113.2/24", "2001:db8::2/64", self.server, SERVER)
        _add_address(self.server, "eth0", f"{OTHER_SERVER[4]}/24", f"{OTHER_SERVER[6]}/64")
        _join(self.gateway, "eth0", "172.16.0.2/24", "fd16::2/64", self.source, {4: "172.16.0.1", 6: "fd16::1"})
        for version, path in (("-4", "172.16.0.2"), ("-6", "fd16::2")):
            self.source.ip(version, "route", "replace", "default", "via", path)
        for version, network, path in (("-4", "10.1.0.0/24", "172.16.0.1"), ("-6", "fd01::/64", "fd16::1")):
            self.gateway.ip(version, "route", "add", network, "via", path)
        for node, netns in self.nodes.items():
            netns.set_sysctl("net/ipv4/ip_forward", "1")
            netns.set_sysctl("net/ipv6/conf/all/forwarding", "1")
            self._make_overlay(node)
        self.gateway.ip("link", "add", "egress.eip", "type", "bridge")
        self.gateway.ip("link", "set", "egress.eip", "up")
        self.gateway.set_sysctl("net/ipv6/conf/eth1/proxy_ndp", "1")
        self.gateway.set_sysctl("net/ipv6/neigh/eth1/proxy_delay", "0")

    def _make_overlay(self, node: NodeName) -> None:
        netns = self.nodes[node]
        [(peer, mark)] = [(other, mark) for other, mark in MARKS.items() if other != node]
        number, other = (1, 2) if node == SOURCE_NODE else (2, 1)
        link = "egress.vxlan"
        netns.ip(
            *("link", "add", link, "address", MACS[node], "type", "vxlan", "id", "100", "dstport", "7789"),
            *("local", f"172.16.0.{number}", "nolearning"),
        )
        _add_address(netns, link, f"172.31.0.{number}/16", f"fd11::{number}/112")
        netns.ip("link", "set", link, "mtu", "1400", "up")
        netns.set_sysctl(f"net/ipv4/conf/{link.replace('/', '.')}/rp_filter", "2")
        _bridge(netns, "fdb", "append", MACS[peer], "dev", link, "dst", f"172.16.0.{other}")
        for version, via in (("-4", f"172.31.0.{other}"), ("-6", f"fd11::{other}")):
            netns.ip(version, "neighbour", "add", via, "lladdr", MACS[peer], "dev", link, "nud", "permanent")
            netns.ip(version, "route", "add", "default", "via", via, "dev", link, "onlink", "table", str(mark))
            netns.ip(version, "rule", "add", "fwmark", f"{mark:#x}/0xffffffff", "lookup", str(mark))

    def hold(self, *addresses: str) -> None:
        """The gateway has these on its device, and no others."""
        self.indexes[GATEWAY_NODE].set_held([ip_address(address) for address in addresses])
        self.gateway.ip("address", "flush", "dev", "egress.eip", "scope", "global")
        for address in addresses:
            length = 32 if "." in address else 128
            nodad = ["nodad"] if length == 128 else []
            self.gateway.ip("address", "add", f"{address}/{length}", "dev", "egress.eip", *nodad)
            if length == 128:
                self.gateway.ip("-6", "neighbour", "replace", "proxy", address, "dev", "eth1")

    def tell(
        self,
        policies: Sequence[PolicyView],
        sources: Mapping[PolicyRef, Mapping[IPAddress, NodeName]] | None = None,
        *,
        cluster: Sequence[str] = CLUSTER,
    ) -> None:
        """All nodes' indexes; without `sources` each policy without ranges selects both pods."""
        everybody = {ip_address(address): SOURCE_NODE for address in POD.values()}
        everybody |= {ip_address(address): GATEWAY_NODE for address in LOCAL_POD.values()}
        for node, index in self.indexes.items():
            index.set_own(node)
            index.set_cluster(map(ip_network, cluster))
            index.set_peers(
                [
                    Peer(node=peer, mark=MARKS[peer], mac=MACS[peer], addresses=UNDERLAY[peer])
                    for peer in MARKS
                    if peer != node
                ]
            )
            index.set_policies(policies)
            for policy in policies:
                chosen = {} if policy.pod_subnets else everybody
                index.set_sources(policy.ref, chosen if sources is None else sources.get(policy.ref, {}))

    def load(self) -> None:
        """As at the start of the agents, with timeouts that outlast the test."""
        for node, netns in self.nodes.items():
            index = self.indexes[node]
            index.take_changes()
            netns.call(lambda index=index: load_elements(TABLES, index.elements()))  # type: ignore[misc]
            self.refresh(node, 600_000)
            self.let_pass(node, 600_000)
            self._rest(node)

    def change(self) -> None:
        """As when something has changed, and has rested."""
        for node, netns in self.nodes.items():
            changes = self.indexes[node].take_changes()
            netns.call(lambda changes=changes: change_elements(TABLES, changes))  # type: ignore[misc]
            self._rest(node)

    def _rest(self, node: NodeName) -> None:
        """The node's connections may bear what is decided for them from now on."""
        index = self.indexes[node]
        index.settle()
        self._now += REST_SECONDS
        changes = index.renew()
        self.nodes[node].call(lambda: change_elements(TABLES, changes))

    def refresh(self, node: NodeName, milliseconds: int) -> None:
        self.nodes[node].call(lambda: refresh_timeouts(TIMEOUTS, milliseconds))

    def let_pass(self, node: NodeName, milliseconds: int) -> None:
        """Unknown sources."""
        self.nodes[node].call(lambda: refresh_timeouts(POD_TIMEOUTS, milliseconds))


def nft(netns: Netns, text: str) -> str:
    """What `nft` says inside."""
    command = ["ip", "netns", "exec", netns.name, "nft", "-f", "-"]
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=_SECONDS)
    assert result.returncode == 0, result.stderr
    return result.stdout


def packets(netns: Netns, table: str) -> dict[str, int]:
    """The named counters of a table, as `nft -j` has them."""
    command = ["ip", "netns", "exec", netns.name, "nft", "-j", "list", "counters", "table", "inet", table]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SECONDS).stdout
    counters = [entry["counter"] for entry in json.loads(listed)["nftables"] if "counter" in entry]
    return {counter["name"]: counter["packets"] for counter in counters if counter["table"] == table}


def wait_for(condition: Callable[[], bool]) -> None:
    """Until it holds; packets that have been sent need a moment."""
    wait_until(condition, what="what was sent has arrived", pause=0.01)


def _join(node: Netns, link: str, ipv4: str, ipv6: str, other: Netns, addresses: Mapping[int, str]) -> None:
    node.ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", other.name)
    _add_address(node, link, ipv4, ipv6)
    _add_address(other, "eth0", f"{addresses[4]}/24", f"{addresses[6]}/64")
    for netns, name in ((node, link), (other, "eth0")):
        netns.ip("link", "set", name, "up")
    for version, path in (("-4", ipv4), ("-6", ipv6)):
        other.ip(version, "route", "add", "default", "via", path.split("/")[0])


def _add_address(netns: Netns, link: str, ipv4: str, ipv6: str) -> None:
    netns.ip("address", "add", ipv4, "dev", link)
    netns.ip("address", "add", ipv6, "dev", link, "nodad")


def _bridge(netns: Netns, *arguments: str) -> None:
    subprocess.run(["bridge", "-n", netns.name, *arguments], check=True, timeout=_SECONDS, capture_output=True)
