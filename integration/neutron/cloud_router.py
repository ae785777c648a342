"""What forwards packets in a cloud: the router that coil-raven has made in Neutron, and the load balancers of Octavia,
in a network namespace beside the nodes.

    Neutron: interfaces of routers ─┐
    Octavia: listeners, members    ─┼─► CloudRouter ─► links of VXLAN, addresses, one nftables table
    Neutron: floating IPs          ─┘

It is built from their objects and nothing else, every half second. To the nodes it is a Node, as coild takes VXLAN
packets from Nodes only. A load balancer is a translation, which hides the client behind the gateway of the subnet of
cluster IPs, as Amphora does; without a member, it refuses.
"""

import json
import subprocess
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import IPv4Address, ip_address, ip_interface, ip_network
from typing import Any, Final

from openstack.connection import Connection

from coil.kernel.family import IPInterface
from coil.neutron.identity import Kind, parse_identity
from coild.settings import VXLAN_PORT
from integration.cluster.control_plane import ControlPlane
from integration.cluster.network import Namespaces, Network
from integration.cluster.workspace import Workspace
from integration.deployment import apply
from integration.neutron.octavia_server import OctaviaServer
from integration.side_thread import SideThread

NAME: Final = "router"
_INDEX: Final = 50
"""Among the addresses of the nodes' network."""
_PREFIX: Final = "cloud"
_PAUSE: Final = 0.5
_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Leg:
    """The router in one network."""

    vni: int
    mtu: int
    mac: str
    addresses: frozenset[IPInterface]

    @property
    def link(self) -> str:
        return f"{_PREFIX}{self.vni}"


@dataclass(frozen=True, slots=True)
class Frontend:
    """A port of a load balancer: at these addresses of one family, to these members."""

    addresses: tuple[str, ...]
    protocol: str
    port: int
    members: tuple[tuple[str, int], ...]


class CloudRouter(SideThread):
    """A side thread. Its namespace ends with the workspace. `nodes` are the addresses of the nodes that it serves."""

    def __init__(
        self,
        workspace: Workspace,
        network: Network,
        plane: ControlPlane,
        octavia: OctaviaServer,
        *,
        nodes: Collection[IPv4Address],
        public: str,
    ) -> None:
        super().__init__("cloud-router")
        self._public = public
        self._network = network
        self._plane = plane
        self._nodes = nodes
        self._octavia = octavia
        self._namespaces = Namespaces.hold(workspace, NAME)
        self.ipv4, self.ipv6 = network.node_addresses(_INDEX)
        network.attach(self._namespaces, port=NAME, addresses=(self.ipv4, self.ipv6))
        self._legs: dict[str, Leg] = {}
        self._table = ""

    def announce(self) -> None:
        """Be a Node of the cluster, and the way to the public network for whoever is outside the cluster."""
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME}, "spec": {"unschedulable": True}}
        apply(self._plane, node)
        addresses = [{"type": "InternalIP", "address": str(address)} for address in (self.ipv4, self.ipv6)]
        patch = json.dumps({"status": {"addresses": addresses}})
        self._plane.kubectl("patch", "node", NAME, "--subresource=status", "--type=merge", f"--patch={patch}")
        self._network.fabric.run("ip", "route", "add", self._public, "via", str(self.ipv4))

    def work(self) -> None:
        """See `SideThread`."""
        with self._octavia.connect() as connection:
            while not self.stopped.wait(_PAUSE):
                legs = {leg.link: leg for leg in read_legs(connection)}
                for name in self._legs.keys() - legs.keys():
                    self._namespaces.run("ip", "link", "delete", name)
                for name, leg in legs.items():
                    if self._legs.get(name) != leg:
                        self._connect(leg, there=name in self._legs)
                self._legs = legs
                frontends, vips = list(read_frontends(connection)), list(read_vips(connection))
                self._translate(render_table(frontends, vips, self._public))

    def _connect(self, leg: Leg, *, there: bool) -> None:
        run = self._namespaces.run
        if there:
            run("ip", "link", "delete", leg.link)
        run(
            *("ip", "link", "add", leg.link, "address", leg.mac, "mtu", str(leg.mtu), "type", "vxlan"),
            *("id", str(leg.vni), "dstport", str(VXLAN_PORT), "local", str(self.ipv4), "dev", "eth0"),
        )
        for address in self._nodes:
            run("bridge", "fdb", "append", "00:00:00:00:00:00", "dev", leg.link, "dst", str(address))
        for own in leg.addresses:
            run("ip", "address", "add", str(own), "dev", leg.link, *(["nodad"] if own.version == 6 else []))
        run("ip", "link", "set", leg.link, "up")

    def _translate(self, table: str) -> None:
        if table == self._table:
            return
        command = [*self._namespaces.entrance, "nft", "-f", "-"]
        done = subprocess.run(command, input=table, capture_output=True, text=True, timeout=_SECONDS, check=False)
        assert done.returncode == 0, f"{done.stderr}\n{table}"
        self._table = table


def _listed(connection: Connection, service: str, path: str, key: str) -> list[dict[str, Any]]:
    """The entries; none of what was deleted since its owner was listed."""
    answer = getattr(connection, service).get(path)
    if answer.status_code == HTTPStatus.NOT_FOUND:
        return []
    answer.raise_for_status()
    return list(answer.json()[key])


def read_legs(connection: Connection) -> Iterator[Leg]:
    """Where routers have interfaces."""
    networks = {each["id"]: each for each in _listed(connection, "network", "/networks", "networks")}
    subnets = {each["id"]: each for each in _listed(connection, "network", "/subnets", "subnets")}
    ports = _listed(connection, "network", "/ports?device_owner=network:router_interface", "ports")
    for network_id in {port["network_id"] for port in ports}:
        network = networks.get(network_id)
        own = [port for port in ports if port["network_id"] == network_id]
        fixed = [each for port in own for each in port["fixed_ips"] if each["subnet_id"] in subnets]
        if network is None or not fixed:
            continue  # it was deleted between two calls
        lengths = {each["subnet_id"]: ip_network(subnets[each["subnet_id"]]["cidr"]).prefixlen for each in fixed}
        yield Leg(
            vni=network["provider:segmentation_id"],
            mtu=network["mtu"],
            mac=min(port["mac_address"] for port in own),
            addresses=frozenset(ip_interface(f"{each['ip_address']}/{lengths[each['subnet_id']]}") for each in fixed),
        )


def read_vips(connection: Connection) -> Iterator[IPInterface]:
    """The gateways of the subnets of cluster IPs, behind which load balancers hide their clients."""
    for subnet in _listed(connection, "network", "/subnets", "subnets"):
        identity = parse_identity(subnet["name"])
        if identity is not None and identity.kind in (Kind.VIP_SUBNET_IPV4, Kind.VIP_SUBNET_IPV6):
            yield ip_interface(f"{subnet['gateway_ip']}/{ip_network(subnet['cidr']).prefixlen}")


def read_frontends(connection: Connection) -> Iterator[Frontend]:
    """What load balancers forward, that are ACTIVE; one without a listener has none."""
    floating = {
        each["port_id"]: each["floating_ip_address"]
        for each in _listed(connection, "network", "/floatingips", "floatingips")
    }
    pools = {each["id"]: each for each in _listed(connection, "load_balancer", "/lbaas/pools", "pools")}
    balancers = _listed(connection, "load_balancer", "/lbaas/loadbalancers", "loadbalancers")
    by_id = {each["id"]: each for each in balancers if each["provisioning_status"] in ("ACTIVE", "PENDING_UPDATE")}
    for listener in _listed(connection, "load_balancer", "/lbaas/listeners", "listeners"):
        for owner in listener["loadbalancers"]:
            if (balancer := by_id.get(owner["id"])) is None:
                continue
            members = []
            if (pool := pools.get(listener["default_pool_id"])) is not None:
                path = f"/lbaas/pools/{pool['id']}/members"
                members = _listed(connection, "load_balancer", path, "members")
            addresses = [balancer["vip_address"]]
            if balancer["vip_port_id"] in floating:
                addresses.append(floating[balancer["vip_port_id"]])
            yield Frontend(
                addresses=tuple(addresses),
                protocol=listener["protocol"].lower(),
                port=listener["protocol_port"],
                members=tuple(sorted((each["address"], each["protocol_port"]) for each in members)),
            )


def render_table(frontends: list[Frontend], vips: list[IPInterface], public: str) -> str:
    """The nftables table, in place of the one before."""
    translations = []
    refusals = [f"ip daddr {public} meta l4proto tcp ct status & dnat == 0 reject with tcp reset"]
    for each in sorted(frontends, key=lambda each: (each.addresses, each.protocol, each.port)):
        family = "ip" if ip_address(each.addresses[0]).version == 4 else "ip6"
        match = f"{family} daddr {{ {', '.join(each.addresses)} }} {each.protocol} dport {each.port}"
        if each.members:
            targets = ", ".join(f"{n} : {address} . {port}" for n, (address, port) in enumerate(each.members))
            choice = f"numgen inc mod {len(each.members)} map {{ {targets} }}"
            translations.append(f"{match} dnat {family} addr . port to {choice}")
    for vip in vips:
        family = "ip" if vip.version == 4 else "ip6"
        refusals += [
            f"{family} daddr {vip.network} ct status & dnat == 0 meta l4proto tcp reject with tcp reset",
            f"{family} daddr {vip.network} ct status & dnat == 0 reject",
        ]
    hidden = [f'oifname "{_PREFIX}*" meta nfproto ipv{vip.version} ct status dnat snat to {vip.ip}' for vip in vips]
    # What leads out of the cloud, such as to the API server.
    hidden.append("oifname eth0 ct status dnat masquerade")
    chains = {
        "pre": ("type nat hook prerouting priority dstnat", translations),
        "refuse": (
            "type filter hook forward priority -10",
            [
                *refusals,
                # Pods reach what load balancers lead to, and each other.
                f'iifname "{_PREFIX}*" oifname eth0 ct state new ct status & dnat == 0 drop',
                f'iifname eth0 oifname "{_PREFIX}*" ct state new ct status & dnat == 0 drop',
            ],
        ),
        "post": ("type nat hook postrouting priority srcnat", hidden),
    }
    body = "\n".join(
        f"  chain {name} {{\n    {kind}; policy accept;\n" + "".join(f"    {rule}\n" for rule in rules) + "  }"
        for name, (kind, rules) in chains.items()
    )
    return f"table inet cloud\ndelete table inet cloud\ntable inet cloud {{\n{body}\n}}\n"
