"""What packet filters of others do with packets of pods: what is said of them, beside what the kernel does."""

import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address
from random import Random
from typing import Final

import pytest

from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName
from coil.kernel.packet_filter import ForwardedPacket, judge
from coil.netlink.host import HostNetwork
from coil.netlink.worker import open_worker
from coil.nft.forward_watch import ReadHooks, read_hooks
from integration.netns.netns import Netns
from integration.netns.plans import pod_plan

pytestmark = pytest.mark.kernel

POD = {Family.IPV4: ip_address("10.64.0.1"), Family.IPV6: ip_address("fd64::1")}
OUTSIDE = {Family.IPV4: ip_address("198.51.100.2"), Family.IPV6: ip_address("fd00:5::2")}
UPLINK = LinkName("up0")
PORT: Final = 5353
ROUNDS: Final = 8
VERSIONS: Final = {Family.IPV4: "ip", Family.IPV6: "ip6"}
SECONDS: Final = 10.0
NETWORKS = {
    Family.IPV4: ("10.64.0.0/16", "10.64.0.0/15", "10.64.0.1/32", "198.51.100.0/25", "10.0.0.0/8"),
    Family.IPV6: ("fd64::/16", "fd64::/64", "fd64::1/128", "fd00:5::/121", "fc00::/7"),
}


@dataclass(frozen=True, slots=True)
class Node:
    """A node that forwards, one pod, and somebody outside."""

    host: Netns
    pod: Netns
    outside: Netns
    link: LinkName
    hooks: ReadHooks
    has_legacy: bool
    """Whether the kernel has the tables of iptables-legacy: newer ones may be built without."""

    def run(self, *command: str, text: str = "") -> None:
        """Run a program in the node's namespace."""
        subprocess.run(["ip", "netns", "exec", self.host.name, *command], input=text, text=True, check=True, timeout=60)

    def packets(self, family: Family) -> Iterator[tuple[ForwardedPacket, Netns, Netns]]:
        """The packet, who sends it, and who is to have it."""
        pod, outside = POD[family], OUTSIDE[family]
        packet = ForwardedPacket(family=family, input=self.link, output=UPLINK, source=pod, destination=outside)
        yield packet, self.pod, self.outside
        back = replace(packet, input=UPLINK, output=self.link, source=outside, destination=pod)
        yield back, self.outside, self.pod


@pytest.fixture
async def node(host: Netns, pod: Netns, network: HostNetwork, new_netns: Callable[[], Netns]) -> AsyncIterator[Node]:
    """Its default route is by the link up0."""
    outside = new_netns()
    host.ip("link", "add", UPLINK, "type", "veth", "peer", "name", "eth0", "netns", outside.name)
    for netns, link, number in ((host, UPLINK, 1), (outside, "eth0", 2)):
        netns.ip("link", "set", link, "up")
        netns.ip("address", "add", f"198.51.100.{number}/24", "dev", link)
        netns.ip("address", "add", f"fd00:5::{number}/64", "dev", link, "nodad")
    host.ip("route", "add", "default", "via", "198.51.100.2")
    outside.ip("route", "add", "10.64.0.0/16", "via", "198.51.100.1")
    outside.ip("route", "add", "fd64::/64", "via", "fd00:5::1")
    plan = pod_plan()
    await network.attach_pod(plan, pod.path)
    asked = subprocess.run(
        ["ip", "netns", "exec", host.name, "iptables-legacy-save", "-t", "filter"],
        capture_output=True,
        check=False,
        timeout=60,
    )
    async with open_worker("forward-read", host.path) as worker:
        made = Node(
            host, pod, outside, plan.host.name, partial(worker.run, read_hooks), has_legacy=asked.returncode == 0
        )
        # From now on all hardware addresses are known: nothing waits for them while a filter comes or goes.
        for family in Family:
            for packet, sender, receiver in made.packets(family):
                assert passes(made, packet, sender, receiver)
        yield made


async def dropped(node: Node, packet: ForwardedPacket) -> list[str]:
    """What is said of the packet."""
    return [reason for hook in await node.hooks() if (reason := judge(hook, packet))]


def udp_socket(netns: Netns, address: IPAddress, port: int = 0) -> socket.socket:
    """Bound to the address of the namespace."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    made = netns.call(lambda: socket.socket(family, socket.SOCK_DGRAM))
    made.bind((str(address), port))
    made.settimeout(SECONDS)
    return made


def passes(node: Node, packet: ForwardedPacket, sender: Netns, receiver: Netns) -> bool:
    """Whether the packet arrives. The filters are taken away after it: what is sent then arrives in any case.

    A connection for each packet, so that none is let through since one before it was.
    """
    assert packet.source is not None
    assert packet.destination is not None
    with udp_socket(receiver, packet.destination, PORT) as server, udp_socket(sender, packet.source) as client:
        client.sendto(b"probe", (str(packet.destination), PORT))
        flush(node)
        client.sendto(b"end", (str(packet.destination), PORT))
        received = [server.recv(16)]
        if received == [b"probe"]:
            received.append(server.recv(16))
    assert received[-1] == b"end"
    return len(received) == 2


def flush(node: Node) -> None:
    """Take all filters away, of whatever program."""
    node.run("nft", "flush", "ruleset")
    if node.has_legacy:
        for version in VERSIONS.values():
            node.run(f"{version}tables-legacy-restore", text=legacy_text({}, "ACCEPT"))


# --- rulesets that nobody has thought of


CHAINS: Final = ("FORWARD", "FIRST", "SECOND")
"""Each may jump to those after it."""
Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Condition:
    """`what` is one of in, out, src, dst; a value that ends in an asterisk is the beginning of a name."""

    what: str
    value: str
    negated: bool


@dataclass(frozen=True, slots=True)
class Written:
    """A rule, before somebody says it in the words of a program."""

    conditions: tuple[Condition, ...]
    verdict: str
    target: str = ""


Ruleset = Mapping[str, Sequence[Written]]


NO_WAY_BACK: Ruleset = {
    "FORWARD": [Written((), "goto", "FIRST"), Written((), "accept")],
    "FIRST": [Written((), "nothing")],
}
"""Chance seldom makes a difference between `goto` and `jump`."""


def random_ruleset(random: Random, family: Family, link: LinkName) -> Ruleset:
    """A few rules in each chain, which are about packets of pods more often than not."""
    names = [link, link, f"{link[:4]}*", UPLINK, "up*", "docker0"]
    values = {"in": names, "out": names, "src": NETWORKS[family], "dst": NETWORKS[family]}

    def condition() -> Condition:
        what = random.choice(sorted(values))
        return Condition(what, random.choice(values[what]), negated=random.random() < 0.2)

    def rule(chain: str) -> Written:
        conditions = {found.what: found for found in (condition() for _ in range(random.choice((0, 1, 1, 2))))}
        verdicts = ["accept", "drop", "accept", "drop", "return", "nothing"]
        later = CHAINS[CHAINS.index(chain) + 1 :]
        verdict = random.choice(verdicts + ["jump", "jump", "goto"] * bool(later))
        target = random.choice(later) if verdict in {"jump", "goto"} else ""
        return Written(tuple(conditions.values()), verdict, target)

    return {chain: [rule(chain) for _ in range(random.randint(1, 4))] for chain in CHAINS}


def legacy_text(ruleset: Ruleset, policy: str) -> str:
    """As iptables-restore has it."""
    options = {"in": "-i", "out": "-o", "src": "-s", "dst": "-d"}
    verdicts = {"accept": ["-j", "ACCEPT"], "drop": ["-j", "DROP"], "return": ["-j", "RETURN"], "nothing": []}
    lines = ["*filter", f":FORWARD {policy} [0:0]", *(f":{chain} - [0:0]" for chain in ruleset if chain != "FORWARD")]
    for chain, rules in ruleset.items():
        for rule in rules:
            words = ["-A", chain]
            for each in rule.conditions:
                words += ["!"] * each.negated + [options[each.what], each.value.replace("*", "+")]
            jump = ["-j" if rule.verdict == "jump" else "-g", rule.target]
            lines.append(" ".join(words + (jump if rule.target else verdicts[rule.verdict])))
    return "\n".join([*lines, "COMMIT", ""])


def nft_text(table: str, version: str, ruleset: Ruleset, policy: str) -> str:
    """As `nft -f` has it."""
    fields = {"in": "iifname", "out": "oifname", "src": f"{version} saddr", "dst": f"{version} daddr"}
    texts = []
    for chain, rules in reversed(list(ruleset.items())):
        lines = []
        for rule in rules:
            words = []
            for each in rule.conditions:
                value = f'"{each.value}"' if each.what in {"in", "out"} else each.value
                words += [fields[each.what], *(["!="] * each.negated), value]
            words.append("counter" if rule.verdict == "nothing" else f"{rule.verdict} {rule.target}")
            lines.append(" ".join(words))
        if chain == "FORWARD":
            lines.insert(0, f"type filter hook forward priority 0; policy {policy.lower()};")
        texts += [f"chain {chain} {{", *lines, "}"]
    return "\n".join([f"table {table} other {{", *texts, "}", ""])


def write(node: Node, program: str, family: Family, ruleset: Ruleset, policy: str) -> None:
    version = VERSIONS[family]
    if program in {"legacy", "nft"}:
        node.run(f"{version}tables-{program}-restore", text=legacy_text(ruleset, policy))
    else:
        table = "inet" if program == "inet" else version
        node.run("nft", "-f", "-", text=nft_text(table, version, ruleset, policy))


@pytest.mark.parametrize("program", ["legacy", "nft", "own", "inet"])
@pytest.mark.parametrize("family", list(Family))
async def test_what_is_said_is_what_the_kernel_does(node: Node, program: str, family: Family) -> None:
    """iptables-legacy, iptables-nft, and nftables' own tables of one family and of both."""
    if program == "legacy" and not node.has_legacy:
        pytest.skip("this kernel has no tables of iptables-legacy")
    random = Random(f"{program} {family}")
    said = {True: 0, False: 0}
    found = [(random_ruleset(random, family, node.link), random.choice(["ACCEPT", "DROP"])) for _ in range(ROUNDS)]
    for number, (ruleset, policy) in enumerate([(NO_WAY_BACK, "DROP"), *found]):
        for packet, sender, receiver in node.packets(family):
            write(node, program, family, ruleset, policy)
            reasons = await dropped(node, packet)
            arrived = passes(node, packet, sender, receiver)
            assert arrived != bool(reasons), (number, policy, ruleset, reasons)
            said[arrived] += 1
    assert min(said.values()) > ROUNDS // 4, "both occur"
