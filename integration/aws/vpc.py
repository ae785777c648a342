"""A VPC in network namespaces: what instances have as links, and everything behind these, as the strict EC2 has it now.

    node-0 eth0 ─┐          ┌─ internet, which knows primary addresses only
    node-0 eth1 ─┤          ├─ on-premises, which knows all
    node-1 eth0 ─┼─ router ─┤
    endpoint    ─┘          └─ control: API servers and EC2, on this machine

An instance that is plugged in has a link for each of its interfaces, from the moment at which EC2 says that the
interface is attached: with its hardware address, named eth<device number>, down and without an address. Detached, it is
gone. The router answers ARP for the subnet's gateway, and for everything else that it would forward; the VPC's resolver
is an address of its own. Nothing of it has a way out of this machine.

EC2's calls are answered after the router has followed them (`StrictEc2.watchers`).
"""

import json
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, ip_address
from pathlib import Path
from typing import Any, Final

from coil.kernel.family import IPAddress
from integration.aws.ec2_state import Interface, read_state
from integration.aws.strict_ec2 import StrictEc2
from integration.aws.vpc_plan import (
    CONTROL,
    INTERNET,
    INTERNET6,
    ON_PREMISES,
    OUTSIDE,
    RouterObject,
    RouterPlan,
    flow_set,
    plan_router,
    port_name,
)
from integration.cluster.network import Namespaces, Network, NetworkError, run_command
from integration.cluster.workspace import Workspace
from integration.kernel_state import KernelState
from integration.netns.netns import call_inside
from integration.patience import wait_until
from integration.side_thread import SideThread

MTU: Final = 9001
"""Of every interface (EC2 User Guide, "Network maximum transmission unit (MTU) for your EC2 instance")."""
GATEWAY6: Final = "fe80::1"
METADATA: Final = IPv4Address("169.254.169.254")
RESOLVER_PORT: Final = 53
_SECONDS: Final = 60.0

_BASE: Final = f"""
table inet vpc {{
    chain sources {{ type filter hook prerouting priority raw; policy accept; }}
    chain forward {{ type filter hook forward priority filter; policy accept; }}
    set cut {{ type ipv4_addr . inet_service; }}
    set refused {{ type ipv4_addr . inet_service; }}
    chain control {{
        type filter hook forward priority filter - 1; policy accept;
        ip daddr . tcp dport @cut drop
        ip saddr . tcp sport @cut drop
        ip daddr . tcp dport @refused reject with tcp reset
        oifname "eth0" ip daddr {CONTROL} ct state invalid drop comment "nobody would translate it"
    }}
    chain translate {{
        type nat hook postrouting priority srcnat; policy accept;
        oifname "eth0" ip daddr {CONTROL} masquerade
    }}
}}
"""


@dataclass(frozen=True, slots=True)
class Host:
    """A machine outside the VPC, or anything else with a namespace that talks and listens."""

    netns: Path

    def socket(self, kind: socket.SocketKind, address: str) -> socket.socket:
        """A socket of its namespace, of that address's family."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        made = call_inside(self.netns, lambda: socket.socket(family, kind))
        made.settimeout(_SECONDS)
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRecord:
    """Packets of one flow that an interface has sent or received, as in a VPC's flow log.

    The action is `accepted`, `rejected` for want of a permission, or `spoofed`: the source was not the interface's.
    """

    interface: str
    source: IPAddress
    destination: IPAddress
    protocol: str
    source_port: int
    port: int
    packets: int
    action: str


class Vpc:
    """One of the VPCs that EC2 has. Make it with `up`; instances are plugged in by whoever runs them."""

    def __init__(self, workspace: Workspace, network: Network, ec2: StrictEc2, *, vpc: str) -> None:
        self._ec2 = ec2
        self._vpc = vpc
        self._plugged: dict[str, Namespaces] = {}
        self._ports: dict[str, Interface] = {}
        self._plan = RouterPlan(frozenset(), "", frozenset())
        self._seen: set[str] = set()
        self.router = Namespaces.hold(workspace, "vpc-router")
        network.attach(self.router, port="vpc", addresses=network.node_addresses(0))
        self._outside = {link: Namespaces.hold(workspace, link) for link in OUTSIDE}

    @classmethod
    @contextmanager
    def up(cls, workspace: Workspace, network: Network, ec2: StrictEc2, *, vpc: str = "") -> Iterator["Vpc"]:
        """Without instances. Follows EC2 until the end of the context; the namespaces end with the workspace.

        The router is node number 0 of the network.
        """
        made = cls(workspace, network, ec2, vpc=vpc or ec2.vpc())
        made._build()
        ec2.watchers.append(made._follow)
        with made._resolver():
            try:
                yield made
            finally:
                ec2.watchers.remove(made._follow)
                # Nothing of this goes to the control network any more. As namespaces end, for a moment they forward and
                # do not translate, and the last words of a coild would reach the API server as an instance's.
                made.router.run("ip", "link", "set", "eth0", "down")

    @property
    def internet(self) -> Host:
        return Host(self._outside[INTERNET].net)

    @property
    def on_premises(self) -> Host:
        return Host(self._outside[ON_PREMISES].net)

    @property
    def resolver(self) -> IPv4Address:
        """The VPC's: the base of its first CIDR plus two."""
        cidrs = read_state(self._ec2).vpcs[self._vpc]
        return next(each[2] for each in cidrs if isinstance(each, IPv4Network))

    def plug(self, instance: str, namespaces: Namespaces) -> None:
        """Have the instance's interfaces appear in there, and all those that are attached from now on."""
        with self._ec2.still():
            self._plugged[instance] = namespaces
            self._follow()

    def unplug(self, instance: str) -> None:
        """The instance is switched off; its interfaces stay attached. Idempotent."""
        with self._ec2.still():
            self._plugged.pop(instance, None)
            self._follow()

    def port(self, interface: str) -> str:
        """The router's link to an interface, for captures in `router.net`."""
        return port_name(interface)

    def wait_up(self, interface: str) -> None:
        """Return when the router's end is up, which takes a moment from when the other one is: then nothing is lost."""
        kernel, port = KernelState(str(self.router.net)), port_name(interface)
        wait_until(lambda: (kernel.link(port) or {}).get("operstate") == "UP", what=f"the port of {interface} is up")

    def flows(self) -> list[FlowRecord]:
        """Of all interfaces that were ever plugged in, since then."""
        found = []
        listed = json.loads(self._run("nft", "--json", "list", "sets", "inet"))
        sets = {each["set"]["name"]: each["set"] for each in listed["nftables"] if "set" in each}
        for interface in sorted(self._seen):
            for action in ("accepted", "rejected", "spoofed"):
                for version in (4, 6):
                    elements = sets.get(flow_set(action, version, port_name(interface)), {}).get("elem", ())
                    found += [_flow(interface, action, each["elem"]) for each in elements]
        return found

    def cut(self, *servers: tuple[str, int], silently: bool = True) -> None:
        """Until `mend`, nothing goes to these servers of the control network; silently, nobody is told."""
        elements = ", ".join(f"{address} . {port}" for address, port in servers)
        self._nft(f"add element inet vpc {'cut' if silently else 'refused'} {{ {elements} }}")

    def mend(self, *servers: tuple[str, int]) -> None:
        """Undo every `cut`; with `servers`, only the silent cuts of these."""
        if servers:
            elements = ", ".join(f"{address} . {port}" for address, port in servers)
            self._nft(f"delete element inet vpc cut {{ {elements} }}")
        else:
            self._nft("flush set inet vpc cut\nflush set inet vpc refused")

    # --- inside

    def _build(self) -> None:
        self.router.run("ip", "route", "delete", "default")
        self._set("net/ipv6/conf/default/accept_dad", "0")
        self._set("net/ipv4/conf/all/send_redirects", "0")
        self._set("net/ipv4/conf/default/send_redirects", "0")
        # Whatever is in the middle of a conversation when rules change stays in it.
        self._set("net/netfilter/nf_conntrack_tcp_be_liberal", "1")
        lines = [f"address add {METADATA} dev lo"]
        for link, address in OUTSIDE.items():
            other = self._outside[link]
            lines.append(f"link add {link} type veth peer name eth0 netns {other.net}")
            lines.append(f"address add {_router_at(address)}/24 dev {link}")
            lines.append(f"link set {link} up")
            self._batch(self.router, lines)
            lines = []
            self._batch(other, ["link set lo up", f"address add {address}/24 dev eth0", "link set eth0 up"])
        self._batch(self.router, [f"address add {INTERNET6 - 15}/64 dev {INTERNET} nodad"])
        internet = [f"address add {INTERNET6}/64 dev eth0 nodad", f"route add default via {INTERNET6 - 15} dev eth0"]
        self._batch(self._outside[INTERNET], internet)
        # On-premises, all of the VPC is known; the internet learns of addresses as they become public.
        self._batch(self._outside[ON_PREMISES], [f"route add default via {_router_at(OUTSIDE[ON_PREMISES])} dev eth0"])
        self._nft(_BASE)
        self._follow()

    def _follow(self) -> None:
        """Be as EC2 has it now. EC2's lock is held, or nobody else knows of this yet."""
        state = read_state(self._ec2)
        cidrs = [*state.vpcs[self._vpc]]
        wanted = {
            interface.id: interface
            for instance in self._plugged
            for interface in state.attached_to(instance)
            # One for EFA only is no link.
            if interface.subnet.vpc == self._vpc and interface.addresses
        }
        plan = plan_router(wanted.values(), cidrs, state.groups)
        gone = [old for key, old in self._ports.items() if not _same_place(old, wanted.get(key))]
        new = [each for key, each in wanted.items() if not _same_place(each, self._ports.get(key))]
        if plan == self._plan and not gone and not new:
            return
        lost = {port_name(each.id) for each in gone}
        self._batch(self.router, [f"link delete {port}" for port in sorted(lost)])
        for each in new:
            self._create_port(each, self._plugged[each.instance])
        # What was on a link that is gone has gone with it, but for rules.
        before = {each for each in self._plan.objects if each.kind == "rule" or not lost & set(each.what.split())}
        self._apply(before, plan.objects)
        self._apply_public(plan)
        self._nft(plan.rules)
        self._plan, self._ports = plan, wanted
        self._seen |= set(wanted)

    def _create_port(self, interface: Interface, inside: Namespaces) -> None:
        port, name = port_name(interface.id), f"eth{interface.device}"
        self._batch(
            self.router,
            [
                f"link add {port} mtu {MTU} type veth"
                f" peer name {name} address {interface.mac} mtu {MTU} netns {inside.net}",
                f"address add {interface.subnet.ipv4[1]}/32 dev {port}",
            ],
        )
        self._set(f"net/ipv6/conf/{port}/addr_gen_mode", "1")
        self._set(f"net/ipv4/conf/{port}/proxy_arp", "1")
        # To be slow with the answer is meant for links on which others might answer, too.
        self._set(f"net/ipv4/neigh/{port}/proxy_delay", "0")
        self._batch(self.router, [f"address add {GATEWAY6}/64 dev {port} nodad", f"link set {port} up"])

    def _apply(self, before: Iterable[RouterObject], after: Iterable[RouterObject]) -> None:
        changes = [("delete", each) for each in sorted(set(before) - set(after))]
        # In this order, no route is there without the neighbour that it leads to.
        changes += [("add", each) for each in sorted(set(after) - set(before))]
        for version in (4, 6):
            lines = [f"{each.kind} {verb} {each.what}" for verb, each in changes if each.version == version]
            self._batch(self.router, lines, version=version)

    def _apply_public(self, plan: RouterPlan) -> None:
        via = f"via {_router_at(OUTSIDE[INTERNET])} dev eth0"
        lines = [f"route delete {address} {via}" for address in self._plan.public - plan.public]
        lines += [f"route add {address} {via}" for address in plan.public - self._plan.public]
        self._batch(self._outside[INTERNET], lines)

    def _batch(self, where: Namespaces, lines: list[str], *, version: int = 0) -> None:
        if lines:
            options = [f"-{version}"] if version else []
            _run_with_input([*where.entrance, "ip", *options, "-batch", "-"], "\n".join([*lines, ""]))

    def _nft(self, text: str) -> None:
        _run_with_input([*self.router.entrance, "nft", "-f", "-"], text)

    def _run(self, *argv: str) -> str:
        return run_command([*self.router.entrance, *argv])

    def _set(self, path: str, value: str) -> None:
        call_inside(self.router.net, lambda: (Path("/proc/sys") / path).write_text(value))

    @contextmanager
    def _resolver(self) -> Iterator[None]:
        address = self.resolver
        self._batch(self.router, [f"address add {address} dev lo"])
        with Resolver(self.router.net, address):
            yield


class Resolver(SideThread):
    """Answers whatever it is asked over UDP, with the address that asked."""

    def __init__(self, netns: Path, address: IPv4Address) -> None:
        super().__init__("resolver")
        self._socket = Host(netns).socket(socket.SOCK_DGRAM, str(address))
        self._socket.bind((str(address), RESOLVER_PORT))
        self._socket.settimeout(0.1)

    def __exit__(self, *how: object) -> None:
        super().__exit__(*how)
        self._socket.close()

    def work(self) -> None:
        while not self.stopped.is_set():
            try:
                _, peer = self._socket.recvfrom(512)
            except TimeoutError:
                continue
            self._socket.sendto(peer[0].encode(), peer)


def _same_place(one: Interface | None, other: Interface | None) -> bool:
    """Whether an interface is where it was."""
    if one is None or other is None:
        return one is other
    return (one.instance, one.device) == (other.instance, other.device)


def _router_at(host: IPv4Address) -> IPv4Address:
    """The router's address on the link to a host outside."""
    return IPv4Network((host, 24), strict=False)[1]


def _flow(interface: str, action: str, element: Mapping[str, Any]) -> FlowRecord:
    source, destination, protocol, source_port, port = element["val"]["concat"]
    has_ports = protocol in ("tcp", "udp")
    return FlowRecord(
        interface=interface,
        source=ip_address(source),
        destination=ip_address(destination),
        protocol=str(protocol),
        source_port=int(source_port) if has_ports else 0,
        port=int(port) if has_ports else 0,
        packets=element["counter"]["packets"],
        action=action,
    )


def _run_with_input(argv: list[str], text: str) -> None:
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise NetworkError(f"{' '.join(argv)}: {done.stderr.strip()}\n{text}")
