"""A node as egressgateway 0.6 leaves it, built by the programs that it uses: iptables, ipset, ip. Beside it, what is
others' and looks like it.
"""

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from pathlib import Path
from typing import Any, Final

from coil.crd.names import NodeName
from integration.netns.netns import Netns

NODE: Final = NodeName("worker-1")
PEERS: Final = ("worker-2", "worker-3")
PARENT: Final = "up0"

_SECONDS: Final = 60.0
_VERSIONS: Final = {4: "iptables", 6: "ip6tables"}
_NETWORKS: Final = {4: "172.31.0.0/16", 6: "fd11::/112"}
_UNDERLAY: Final = "10.6.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What its chart was told, and what the node is. `gateway`: a gateway lists it. `replies`: it has the rule and the
    table for replies that releases before 0.6 made. `pods` are those that the policies select, by version of IP.
    """

    backend: str = "nft"
    gateway: bool = False
    link: str = "egress.vxlan"
    vni: int = 100
    port: int = 7789
    base: int = 0x26000000
    replies: bool = False
    node: str = NODE
    parent: str = PARENT
    pods: Mapping[int, str] = field(default_factory=lambda: {4: "10.64.0.9", 6: "fd64::9"})

    def mark(self, peer: str) -> int:
        """A node's."""
        return self.base | int(sha256(peer.encode()).hexdigest()[:6], 16)


@dataclass(frozen=True, slots=True)
class Policy:
    """As in the names of sets and in comments: "<namespace>-<name>", or the name of a cluster's policy. `source` is the
    target of what leaves from here.
    """

    name: str
    destinations: tuple[str, ...]
    source: str

    @property
    def hash(self) -> str:
        return sha1(self.name.encode(), usedforsecurity=False).hexdigest()[:17]


POLICIES: Final = (
    Policy("default-test", ("198.51.100.0/24", "2001:db8:1::/64"), "SNAT"),
    Policy("everything", (), "MASQUERADE"),
)


def run(netns: Path, *command: str, text: str = "") -> str:
    """The output of a program in the node's namespace."""
    done = subprocess.run(
        ["nsenter", f"--net={netns}", "--", *command],
        input=text,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stderr}\n{text}"
    return done.stdout


def has_legacy(host: Netns) -> bool:
    """Whether the kernel has the tables of iptables-legacy: newer ones may be built without."""
    command = ["ip", "netns", "exec", host.name, "iptables-legacy-save", "-t", "filter"]
    return subprocess.run(command, capture_output=True, check=False, timeout=_SECONDS).returncode == 0


def add_others(host: Netns, backends: Sequence[str]) -> None:
    """An uplink, and what is nobody's but others': it has to stay as it is."""
    host.ip_batch(
        [
            f"link add {PARENT} type veth peer name up1",
            # Without addresses that appear when the kernel gets to it.
            *(f"link set {link} addrgenmode none up" for link in (PARENT, "up1")),
            f"address add {_UNDERLAY}.1/24 dev {PARENT}",
            f"link add vxlan.calico type vxlan id 4096 dev {PARENT} dstport 4789 nolearning",
            "link add egress.vxlan2 type vxlan id 101 dstport 7789 nolearning",
            "rule add priority 99 fwmark 0x1 lookup 1",
            "rule add priority 99 fwmark 0xfe lookup 254",
            "rule add priority 99 fwmark 0x26000005 lookup 700",
            "rule add priority 99 fwmark 0x26000000/0xff000000 lookup 700",
            "rule add priority 98 from 10.9.0.0/24 fwmark 0x26000007 lookup 637534215",
            "rule add priority 97 iif up0 fwmark 0x26000007 lookup 637534215",
            "rule add priority 1700 fwmark 0x26010100 lookup 637600000 protocol 30",
            "rule add priority 1700 fwmark 0x26020200 lookup 637665792 protocol 30",
            "rule add priority 1000 fwmark 0x27 lookup 601",
            f"route add 203.0.113.0/24 dev {PARENT} table 700",
        ]
    )
    run(host.path, "ipset", "restore", text="\n".join(_other_sets()) + "\n")
    for backend in backends:
        for version, program in _VERSIONS.items():
            run(host.path, f"{program}-{backend}-restore", "--noflush", text=_other_rules(version))


def _other_sets() -> Iterator[str]:
    yield "create egress-foreign hash:net"
    yield "create egress-src-v4-738bb01 hash:net"
    yield f"create egress-src-v5-{'0' * 17} hash:net"
    yield f"create egress-dst-v4-{'a' * 17} hash:ip"
    yield "create my-egress-cluster-cidr-ipv4 hash:net"
    yield "add egress-foreign 10.1.0.0/16"


def _other_rules(version: int) -> str:
    mangle = [
        ":cali-PREROUTING - [0:0]",
        ":EGRESSGATEWAY-MARK-REQUEST-2 - [0:0]",
        '-A PREROUTING -m comment --comment "cali:6gwbT8clXdHdC1b1" -j cali-PREROUTING',
        '-A PREROUTING -m comment --comment "not egw:Lh98b3mb9WlZrgw7" -j EGRESSGATEWAY-MARK-REQUEST-2',
        '-A PREROUTING -m comment --comment "egw:short" -j ACCEPT',
        "-A PREROUTING -m mark --mark 0x26000000/0xff000000 -j ACCEPT",
        '-A cali-PREROUTING -m comment --comment "egw:Lh98b3mb9WlZrgw7" -j RETURN',
    ]
    nat = [
        ":KUBE-POSTROUTING - [0:0]",
        '-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING',
        "-A KUBE-POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE",
        *(["-A POSTROUTING -m set --match-set egress-foreign src -j MASQUERADE"] if version == 4 else []),
    ]
    forward = ["-A FORWARD -i egress.vxlan -j ACCEPT", '-A FORWARD -m comment --comment "SNAT for egress traffic"']
    return _tables({"mangle": mangle, "nat": nat, "filter": forward})


def _tables(lines: dict[str, list[str]]) -> str:
    return "".join("\n".join([f"*{table}", *those, "COMMIT", ""]) for table, those in lines.items())


def leave_state(netns: Path, installation: Installation) -> None:
    """All that the agent has made when it stops."""
    _add_tunnel(netns, installation)
    run(netns, "ipset", "restore", text="\n".join(_sets(installation)) + "\n")
    for version, program in _VERSIONS.items():
        run(netns, f"{program}-{installation.backend}-restore", "--noflush", text=_rules(version, installation))
    for path in ("all", installation.link.replace(".", "/")):
        run(netns, "sysctl", "-qw", f"net.ipv4.conf.{path}.rp_filter=2")


def _mac(node: str) -> str:
    return "66:" + sha1(f"{node}egress".encode(), usedforsecurity=False).digest()[:5].hex(":")


def _add_tunnel(netns: Path, installation: Installation) -> None:
    link = installation.link
    lines = [
        f"link add {link} address {_mac(installation.node)} type vxlan id {installation.vni} dev {installation.parent} "
        f"local {_UNDERLAY}.1 dstport {installation.port} nolearning",
        f"address add 172.31.0.1/16 dev {link}",
        f"address add fd11::1/112 dev {link} nodad",
        f"link set {link} up",
    ]
    for number, peer in enumerate(PEERS, 2):
        mark = installation.mark(peer)
        for tunnel, version in ((f"172.31.0.{number}", 4), (f"fd11::{number}", 6)):
            lines.append(f"neighbour add {tunnel} lladdr {_mac(peer)} dev {link} nud permanent")
            lines.append(f"route add default via {tunnel} dev {link} table {mark}")
            run(netns, "ip", f"-{version}", "rule", "add", "priority", "99", "fwmark", hex(mark), "lookup", str(mark))
    if installation.replies:
        lines += ["rule add fwmark 0x27 lookup 600", f"route add 10.64.0.7/32 via 172.31.0.2 dev {link} table 600"]
    run(netns, "ip", "-batch", "-", text="\n".join([*lines, ""]))
    for number, peer in enumerate(PEERS, 2):
        entry = f"{_mac(peer)} dev {link} dst {_UNDERLAY}.{number} self permanent"
        run(netns, "bridge", "fdb", "append", *entry.split())


def _sets(installation: Installation) -> Iterator[str]:
    for version, family in ((4, "inet"), (6, "inet6")):
        yield f"create egress-cluster-cidr-ipv{version} hash:net family {family}"
        yield f"add egress-cluster-cidr-ipv{version} {_NETWORKS[version]}"
        for policy in POLICIES:
            for end in ("src", "dst"):
                yield f"create egress-{end}-v{version}-{policy.hash} hash:net family {family}"
            yield f"add egress-src-v{version}-{policy.hash} {installation.pods[version]}"
            for network in policy.destinations:
                if (":" in network) is (version == 6):
                    yield f"add egress-dst-v{version}-{policy.hash} {network}"


def _rules(version: int, installation: Installation) -> str:
    """Inserted at the top of the built-in chains, so the last one first."""
    whole, base = hex(installation.base), f"{installation.base:#x}/0xff000000"
    accept = "Accept for egress traffic from pod going to EgressTunnel"
    reply = "EgressGateway reply datapath rule, rule is from the EgressGateway"
    cleared = "clear the Mark of the inner package, rule is from the EgressGateway"
    on_gateway = (
        [
            _rule("-I PREROUTING", f"-m mark --mark {base} -j ACCEPT", reply),
            _rule("-I PREROUTING", "-j EGRESSGATEWAY-REPLY-ROUTING", reply),
            _rule("-I POSTROUTING", "-m mark --mark 0x27 -j MARK --set-mark 0", cleared),
        ]
        if installation.gateway
        else [_rule("-I PREROUTING", f"-m mark --mark {base} -j ACCEPT", "EgressGateway traffic accept datapath rule")]
    )
    mangle = [
        ":EGRESSGATEWAY-MARK-REQUEST - [0:0]",
        *([":EGRESSGATEWAY-REPLY-ROUTING - [0:0]"] if installation.gateway else []),
        *on_gateway,
        _rule("-I PREROUTING", "-j EGRESSGATEWAY-MARK-REQUEST", "Checking for EgressPolicy matched traffic"),
        _rule("-I FORWARD", f"-m mark --mark {base} -j MARK --set-mark {whole}", accept),
        _rule("-I POSTROUTING", f"-m mark --mark {whole} -j ACCEPT", accept),
        *(_reply_rules(installation) if installation.gateway else []),
        *(_mark_rules(version, installation) if not installation.gateway else []),
    ]
    nat = [
        ":EGRESSGATEWAY-SNAT-EIP - [0:0]",
        _rule("-I POSTROUTING", f"-m mark --mark {whole}/0xffffffff -j ACCEPT", accept),
        _rule("-I POSTROUTING", "-j EGRESSGATEWAY-SNAT-EIP", "SNAT for egress traffic"),
        _rule("-I PREROUTING", f"-m mark --mark {base} -j ACCEPT", "EgressGateway traffic accept datapath rule"),
        *(_source_rules(version) if installation.gateway else []),
    ]
    both = [_rule(f"-I {chain}", f"-m mark --mark {whole} -j ACCEPT", accept) for chain in ("FORWARD", "OUTPUT")]
    return _tables({"mangle": mangle, "nat": nat, "filter": both})


def _rule(place: str, words: str, comment: str) -> str:
    digest = sha256(f"{place} {words} {comment}".encode()).hexdigest()[:14]
    match, _, target = words.rpartition("-j ")
    return f'{place} -m comment --comment "egw:{digest}_-" -m comment --comment "{comment}" {match}-j {target}'


def _selects(policy: Policy, version: int) -> str:
    named = f"-m set --match-set egress-dst-v{version}-{policy.hash} dst"
    other = f"-m set ! --match-set egress-cluster-cidr-ipv{version} dst"
    destination = named if policy.destinations else other
    return f"-m set --match-set egress-src-v{version}-{policy.hash} src {destination} -m conntrack --ctdir ORIGINAL"


def _mark_rules(version: int, installation: Installation) -> Iterator[str]:
    mark = installation.mark(PEERS[0])
    for policy in POLICIES:
        words = f"{_selects(policy, version)} -j MARK --set-xmark {mark:#x}/0xffffffff"
        yield _rule("-A EGRESSGATEWAY-MARK-REQUEST", words, f"Set mark for EgressPolicy {policy.name}")


def _reply_rules(installation: Installation) -> Iterator[str]:
    chain, suffix = "-A EGRESSGATEWAY-REPLY-ROUTING", "rule is from the EgressGateway"
    for peer in PEERS:
        mark = f"{installation.mark(peer):#x}"
        comes = f"-i {installation.link} -m mac --mac-source {_mac(peer)}"
        original = f"{comes} -m conntrack --ctdir ORIGINAL -j MARK --set-mark {mark}"
        yield _rule(chain, original, f"Mark the traffic from the EgressGateway tunnel, {suffix}")
        yield _rule(chain, f"-m mark --mark {mark} -j CONNMARK --save-mark", f"Save mark to the connection, {suffix}")
        cleared = f"{comes} -j MARK --set-mark {installation.base:#x}"
        yield _rule(chain, cleared, f"Clear Mark of the inner package, {suffix}")
    restored = "-m conntrack --ctdir REPLY -j CONNMARK --restore-mark"
    yield _rule(chain, restored, f"label for restoring connections, {suffix}")


def _source_rules(version: int) -> Iterator[str]:
    address = "10.6.1.55" if version == 4 else "fd00::55"
    for policy in POLICIES:
        target = f"SNAT --to-source {address}" if policy.source == "SNAT" else "MASQUERADE"
        words = f"{_selects(policy, version)} -j {target}"
        yield _rule("-A EGRESSGATEWAY-SNAT-EIP", words, f"snat policy {policy.name}")


def snapshot(host: Netns, backends: Sequence[str]) -> dict[str, Any]:
    """All that the programs tell of the node, without counters and dates."""
    found: dict[str, Any] = dict(host.state())
    found["sets"] = sorted(line for line in run(host.path, "ipset", "save").splitlines())
    found["fdb"] = [line for line in run(host.path, "bridge", "fdb", "show").splitlines() if "permanent" in line]
    for backend in backends:
        for program in _VERSIONS.values():
            saved = re.sub(r"\[\d+:\d+\]", "", run(host.path, f"{program}-{backend}-save"))
            found[f"{program}-{backend}"] = [line for line in saved.splitlines() if not line.startswith("#")]
    return found
