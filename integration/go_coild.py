"""The state that the Go programs of Coil v2 leave on a node and in the API server, written down as `ip` commands and
documents, so that the programs here can be started on it. Nothing here is made by our own code.

Where each fact comes from:

* Alias, tables, protocol, rules at 2000, exported routes to lo: coil.md, sections 2 and 3.
* How a pod's veth is made and in which order: the public implementation (cybozu-go/coil, v2/pkg/nodenet/pod.go), by
  `ip.SetupVethWithName` of the CNI plugins' library: `veth` + 8 hexadecimal digits on the host, hardware addresses
  drawn by the kernel, accept_ra 0 on the host's end. IPv6 addresses go through duplicate address detection; the pod's
  IPv6 gateway is the link-local address that the kernel gave to the host's end; there are no permanent neighbours.
* `Generation.LINK_LOCAL`, v2.0: 169.254.1.1/32 on each host's end, as in the design document, and the kernel's MTU.
* `Generation.NODE_ADDRESS`, since v2.1: the node's InternalIP of both families on each host's end, the uplink's MTU.
* `Generation.NO_QUEUE`, v2.15: the same, and the host's end has a transmit queue of length 0, which is the default of
  its netlink library (1.3.1) for the other end of a veth. integration/apiserver/test_coil_v2.py compares the state of
  this generation, and the objects, with what the programs themselves leave.
* Its netlink library gives rules no protocol (FRA_PROTOCOL is left out), exported routes the scope universe (0), routes
  to pods the scope link, and routes in a pod the protocol boot (3).
* Clients of Egresses (`GoClient`), v2.15: v2/pkg/fou, v2/pkg/nat/netfilter; integration/egress/test_coil_v2.py compares
  it with what the program leaves, in pods of its own and behind another plugin, and with --enable-originating-only.
* Finalizers, labels, owners and names of the objects: coil.md, section 1, and v2/pkg/ipam/{pool,node}.go. A request is
  called `req-<pool>-<node>`, has its Node for an owner and no labels.
"""

from __future__ import annotations

import enum
import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Any

from integration.kernel_state import EXPORT_TABLE, POD_TABLE, KernelState
from integration.patience import wait_until

Document = dict[str, Any]

GROUP = "coil.cybozu.com"
PROTOCOL = "30"
PRIORITY = "2000"
LINK_LOCAL_GATEWAY = "169.254.1.1"


class Generation(enum.Enum):
    """How the host's end of a pod's veth is made."""

    LINK_LOCAL = "v2.0"
    NODE_ADDRESS = "v2.1"
    NO_QUEUE = "v2.15"


@dataclass(frozen=True, slots=True)
class GoPod:
    """A pod with an address of either family, or of one."""

    pool: str
    container_id: str
    addresses: tuple[str, ...]
    host_link: str = field(default_factory=lambda: f"veth{secrets.token_hex(4)}")

    @property
    def alias(self) -> str:
        return f"COIL:{self.pool}:{self.container_id}:eth0"


@dataclass(frozen=True, slots=True)
class GoCoild:
    """What Go's coild does to the node `kernel`. `own` are the node's InternalIPs, IPv4 first."""

    kernel: KernelState
    generation: Generation
    own: tuple[str, str]
    uplink_mtu: int = 1500

    def start(self) -> None:
        """The node's part: it forwards, and asks the pod table for every packet."""
        self.kernel.run("busybox", "sysctl", "-q", "-w", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
        for family in ("-4", "-6"):
            self._ip(family, "rule", "add", "priority", PRIORITY, "lookup", POD_TABLE, "protocol", "unspec")

    def export(self, *blocks: str) -> None:
        """Announce blocks of either family."""
        for block in blocks:
            scope = ["scope", "global"] if ip_network(block).version == 4 else []
            self._ip("route", "add", block, "dev", "lo", "table", EXPORT_TABLE, "proto", PROTOCOL, *scope)

    def attach(self, pod: GoPod, inside: KernelState) -> None:
        """Wire the pod whose namespace is `inside`. Returns when its addresses may be used."""
        mtu = "1500" if self.generation is Generation.LINK_LOCAL else str(self.uplink_mtu)
        peer = ["peer", "name", "eth0", "mtu", mtu, "netns", inside.netns]
        queue = ["txqueuelen", "0"] if self.generation is Generation.NO_QUEUE else []
        self._ip("link", "add", "name", pod.host_link, "mtu", mtu, *queue, "type", "veth", *peer)
        # Duplicate address detection takes seconds; without its probes it has the same outcome at once.
        conf = f"net.ipv6.conf.{pod.host_link}"
        self.kernel.run("busybox", "sysctl", "-q", "-w", f"{conf}.accept_ra=0", f"{conf}.dad_transmits=0")
        inside.run("busybox", "sysctl", "-q", "-w", "net.ipv6.conf.eth0.dad_transmits=0")
        self._ip("link", "set", pod.host_link, "up")
        inside.run("ip", "link", "set", "eth0", "up")
        for address in pod.addresses:
            inside.run("ip", "address", "add", address, "dev", "eth0")
        await_usable(inside, "eth0")
        self._ip("link", "set", pod.host_link, "alias", pod.alias)
        # IPv6 first, as there.
        for address in sorted(pod.addresses, key=lambda text: -ip_network(text).version):
            version = ip_network(address).version
            if (gateway := self._host_address(version)) is not None:
                self._ip("address", "add", gateway, "dev", pod.host_link)
            await_usable(self.kernel, pod.host_link)
            scope = ["scope", "link"] if version == 4 else []
            self._ip("route", "add", address, "dev", pod.host_link, "table", POD_TABLE, "proto", PROTOCOL, *scope)
        for address in pod.addresses:
            if ip_network(address).version == 4:
                gateway = self._host_address(4)
                inside.run("ip", "route", "add", str(gateway), "dev", "eth0", "scope", "link")
                inside.run("ip", "route", "add", "default", "via", str(gateway))
            else:
                via = _link_local(self.kernel, pod.host_link)
                inside.run("ip", "-6", "route", "add", "default", "via", via, "dev", "eth0")

    def _host_address(self, version: int) -> str | None:
        """What each host's end has of that family, besides the kernel's own link-local address."""
        if self.generation is Generation.LINK_LOCAL:
            return LINK_LOCAL_GATEWAY if version == 4 else None
        return self.own[0] if version == 4 else self.own[1]

    def _ip(self, *arguments: str) -> None:
        self.kernel.run("ip", *arguments)


def tunnel_link(address: str) -> str:
    """The name of the tunnel to a peer."""
    peer = ip_address(address)
    if isinstance(peer, IPv4Address):
        return f"fou4_{peer.packed.hex()}"
    return f"fou6_{hashlib.sha1(peer.packed, usedforsecurity=False).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True)
class _Tunnels:
    """How one family is tunnelled: the kind of link, its catch-all and the kernel's own link of that kind."""

    kind: str
    protocol: int
    hops: str
    mode: str
    """Of the catch-all."""
    catch_all: str
    fallback: str
    renamed: str
    link_local: str
    private: tuple[str, ...]


_TUNNELS = {
    4: _Tunnels(
        *("ipip", 4, "ttl 225", "mode ipip", "coil_ipip4", "tunl0", "coil_tunl", "169.254.0.0/16"),
        private=("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),
    ),
    6: _Tunnels(
        *(
            "ip6tnl",
            41,
            "hoplimit 225 encaplimit 0 noencap-udp6-csum",
            "mode any",
            "coil_ipip6",
            "ip6tnl0",
            "coil_ip6tnl",
            "fe80::/10",
        ),
        private=("fc00::/7",),
    ),
}
_CONNMARK = """
table {family} mangle {{
  set eth0 {{
    type ifname
    elements = {{ "eth0" }}
  }}
  chain input {{
    type filter hook input priority mangle; policy accept;
    iifname @eth0 ct state new,established,related counter ct mark set {index}
  }}
  chain output {{
    type route hook output priority mangle; policy accept;
    ct mark {index} counter meta mark set ct mark
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class GoClient:
    """What Go's coild does in a pod that is a client of one Egress; all by IP version: the pod's `addresses`, those of
    the Egress's Service, and a destination that is in no private network.
    """

    addresses: dict[int, str]
    services: dict[int, str]
    destinations: dict[int, str]

    def enroll(self, inside: KernelState) -> None:
        """Make the tunnels, and the rules that lead to them."""
        for version in self.addresses:
            _ip(inside, version, f"fou add port 5555 ipproto {_TUNNELS[version].protocol}")
        settings = ["net.ipv4.conf.default.rp_filter=0", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.ip_forward=1"]
        inside.run("busybox", "sysctl", "-q", "-w", *settings, "net.ipv6.conf.all.forwarding=1")
        inside.run("ip", "link", "add", "fou-dummy", "type", "dummy")
        for version in self.addresses:
            self._add_rules(inside, version)
        for version in self.addresses:
            self._add_tunnel(inside, version)

    def answer_where_asked(self, inside: KernelState) -> None:
        """The rest of --enable-originating-only, with the backend for nftables."""
        link = inside.link("eth0")
        assert link is not None
        index = link["ifindex"]
        table = 1000 + index
        for version, family in ((4, "ip"), (6, "ip6")):
            for route in inside.ip(f"-{version}", "route", "show", "dev", "eth0"):
                via = f"via {route['gateway']}" if "gateway" in route else ""
                metric = f"metric {route['metric']}" if "metric" in route else ""
                scope = f"scope {route['scope']}" if version == 4 else ""
                how = f"dev eth0 table {table} proto {route['protocol']} {scope} {metric}"
                _ip(inside, version, f"route add {route['dst']} {via} {how}")
            _ip(inside, version, f"rule add fwmark {index} priority 1000 lookup {table} protocol unspec")
            inside.run("nft", _CONNMARK.format(family=family, index=index))

    @staticmethod
    def _add_rules(inside: KernelState, version: int) -> None:
        tunnels = _TUNNELS[version]
        for rule in (
            f"to {tunnels.link_local} priority 1800 lookup main",
            "priority 1900 lookup 117",
            "priority 2100 lookup 118",
            *(f"to {network} priority {2000 + number} lookup main" for number, network in enumerate(tunnels.private)),
        ):
            _ip(inside, version, f"rule add {rule} protocol unspec")

    def _add_tunnel(self, inside: KernelState, version: int) -> None:
        tunnels, name = _TUNNELS[version], tunnel_link(self.services[version])
        ends = f"local {self.addresses[version]} remote {self.services[version]}"
        encapsulation = "encap fou encap-sport 5555 encap-dport 5555"
        scope = "scope global" if version == 4 else ""
        for command in (
            f"link add {name} type {tunnels.kind} {ends} {tunnels.hops} {encapsulation}",
            f"link add {tunnels.catch_all} txqueuelen 0 type {tunnels.kind} {tunnels.mode} external",
            f"link set {tunnels.catch_all} up",
            f"link set {tunnels.fallback} name {tunnels.renamed}",
            f"link set {name} up",
            f"route add {self.destinations[version]} dev {name} table 118 proto {PROTOCOL} {scope}",
        ):
            _ip(inside, version, command)


def _ip(kernel: KernelState, version: int, command: str) -> None:
    kernel.run("ip", f"-{version}", *command.split())


def await_usable(kernel: KernelState, link: str) -> None:
    """As `ip.SettleAddresses` does: wait until the link has its own address and none is tentative."""

    def usable() -> bool:
        addresses = _addresses(kernel, link)
        return any(address["scope"] == "link" for address in addresses) and not any(
            address.get("tentative") for address in addresses
        )

    wait_until(usable, what=f"the addresses of {link} may be used")


def _link_local(kernel: KernelState, link: str) -> str:
    [found] = [str(address["local"]) for address in _addresses(kernel, link) if address["scope"] == "link"]
    return found


def _addresses(kernel: KernelState, link: str) -> list[dict[str, Any]]:
    return [address for entry in kernel.ip("-6", "address", "show", "dev", link) for address in entry["addr_info"]]


def pool_document(name: str, bits: int, subnets: Sequence[dict[str, str]]) -> Document:
    return {
        "apiVersion": f"{GROUP}/v2",
        "kind": "AddressPool",
        "metadata": {"name": name, "finalizers": [GROUP]},
        "spec": {"blockSizeBits": bits, "subnets": list(subnets)},
    }


def block_document(
    pool: str, index: int, *, node: str, pool_uid: str, networks: dict[str, str], request: str = ""
) -> Document:
    """A block; `request` is the UID of the one that it answers, which the oldest versions do not note."""
    labels = {f"{GROUP}/pool": pool, f"{GROUP}/node": node} | ({f"{GROUP}/request": request} if request else {})
    owner = {
        "apiVersion": f"{GROUP}/v2",
        "kind": "AddressPool",
        "name": pool,
        "uid": pool_uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": f"{GROUP}/v2",
        "kind": "AddressBlock",
        "metadata": {
            "name": f"{pool}-{index}",
            "labels": labels,
            "finalizers": [GROUP],
            "ownerReferences": [owner],
        },
        "index": index,
        **networks,
    }


def request_document(pool: str, *, node: str, node_uid: str) -> Document:
    """A request as one that was not deleted is left behind."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}
    return {
        "apiVersion": f"{GROUP}/v2",
        "kind": "BlockRequest",
        "metadata": {"name": f"req-{pool}-{node}", "ownerReferences": [owner]},
        "spec": {"nodeName": node, "poolName": pool},
    }


def request_status(block: str) -> Document:
    """The status of an answered request, of long ago."""
    moment = "2024-05-01T00:00:00Z"
    complete = {
        "type": "Complete",
        "status": "True",
        "reason": "completed",
        "message": "completed",
        "lastProbeTime": moment,
        "lastTransitionTime": moment,
    }
    return {"addressBlockName": block, "conditions": [complete]}
